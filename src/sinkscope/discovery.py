"""Find what stands in a folder: every module of a package is imported, and each files what it holds.

So a new family, rule, control or figure is one new file, and no list of them is kept anywhere.
"""

import importlib
import pkgutil
from collections.abc import Iterable


def import_modules(folder: Iterable[str], package: str) -> None:
    """Import every module of a package, given its `__path__` and its name, in the order of their names."""
    for module in sorted(pkgutil.iter_modules(folder), key=lambda one: one.name):
        importlib.import_module(f"{package}.{module.name}")
