"""Import a module by its old name, with a deprecation warning.

Old names work for one minor release. The packages list them; this module is only imported if one
is used.
"""

from __future__ import annotations

import importlib
import warnings
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Loader(Loader):
    def __init__(self, new: str) -> None:
        self._new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module under its new name and warn."""
        warnings.warn(
            f"{spec.name} has moved to {self._new}: change the import, the old name is removed"
            " with the next minor release",
            DeprecationWarning,
            stacklevel=2,
        )
        module = importlib.import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec; the module has already run under its new name."""
        module.__spec__ = self._spec


def moved_spec(old: str, new: str) -> ModuleSpec:
    """Return a spec that loads the module `new` under the name `old`."""
    return ModuleSpec(old, _Loader(new))
