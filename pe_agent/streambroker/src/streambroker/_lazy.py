"""Names that are imported on first use: a worker of Spark pays for every import."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]], submodules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a module.

    Args:
        package: the module, as its ``__name__``.
        modules: the public names by the module that has them.
        submodules: its own modules, which are imported on first use, too.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(places[name]), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "pyspark":
                raise
            raise ModuleNotFoundError(
                f"{package}.{name} needs PySpark: pip install 'streambroker[spark]'",
                name=error.name,
            ) from error

    names = sorted(places)
    return get, lambda: sorted([*names, *submodules]), names
