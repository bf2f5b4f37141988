"""Old names of modules and of the public API: each warns and names its successor.

Old names work for one minor release.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

REMOVAL = "the old name is removed with the next minor release"
_RENAMED = {
    "FIGURES_SCHEMA": "METRICS_SCHEMA",
    "Processors": "QueryRules",
    "control_aware": "apply",
    "pattern": "Stream.match",
    "pattern_processors": "Stream.match_rules",
}


def renamed(name: str) -> str:
    """Return the new name of a public name."""
    return _RENAMED.get(name, name)


def warn_deprecated(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that ``old`` has a new name, at the caller's caller by default."""
    warnings.warn(
        f"{old} is deprecated: use {new}, {REMOVAL}", DeprecationWarning, stacklevel=stacklevel
    )


CHANGED_DELIVERY = (
    "a control tuple without a delivery is delivered with END_WINDOW, before it was BEGIN: name the"
    " delivery"
)
"""Warning of REST and the command line, for one release."""

_warned_defaults: set[str] = set()


def warn_changed_delivery(call: str, *, stacklevel: int = 4) -> None:
    """Warn once, at the call of ``call``, that its default delivery is another one now."""
    if call not in _warned_defaults:
        warnings.warn(
            f"{call} without delivery= delivers with END_WINDOW, before it was BEGIN: give"
            " delivery=, or declare it at the payload's type",
            FutureWarning,
            stacklevel=stacklevel,
        )
        _warned_defaults.add(call)


def deprecated_name(package: str, name: str, modules: Mapping[str, str], new: str) -> Any:
    """Return a name of a deprecated package, with a warning.

    Args:
        package: the package, as its ``__name__``.
        name: the requested name.
        modules: the module of each name.
        new: the package that has it now.

    Raises:
        AttributeError: the package has no such name.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    warn_deprecated(f"{package}.{name}", f"{new}.{renamed(name)}", stacklevel=4)
    return getattr(importlib.import_module(modules[name]), name)


class _Loader(Loader):
    def __init__(self, new: str) -> None:
        self._new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module under its new name and warn."""
        warnings.warn(
            f"{spec.name} has moved to {self._new}: change the import, {REMOVAL}",
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
