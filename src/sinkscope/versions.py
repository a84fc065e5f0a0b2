"""Which versions of packages make which numbers, and what is said where work goes on that others began.

Numbers change with sinkscope itself, and with the major and minor versions of torch and transformers; work of other
such versions is not mixed. Of anything else that differs (a patch, numpy, zarr) a caution tells.
"""

import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from sinkscope.errors import OtherVersionsWarning, UserError

PACKAGES = ("sinkscope", "torch", "transformers")
"""Those that change numbers."""
_WHOLE = frozenset({"sinkscope"})
"""Those of which the patch counts too."""
_KEEPING = frozenset({"numpy", "xarray", "zarr"})
"""Those that write numbers down, and make none."""


def versions_now(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """The versions that are installed."""
    return {name: version(name) for name in names}


def deciding(versions: Mapping[str, Any]) -> dict[str, str | None]:
    """The part of versions that decides numbers: "2.13" of torch 2.13.1+cpu; None where one is not known."""
    return {name: _deciding(name, versions.get(name)) for name in {*PACKAGES, *versions} - _KEEPING}


def _deciding(name: str, one: object) -> str | None:
    if not isinstance(one, str):
        return None
    return one if name in _WHOLE else ".".join(one.split("+")[0].split(".")[:2])


def check_versions(before: Mapping[str, Any], now: Mapping[str, Any], what: str, *, other_versions: bool) -> None:
    """Raise `UserError` where `what` was begun by versions that make other numbers, unless `other_versions`; warn with
    `OtherVersionsWarning` of any other difference."""
    differing = [name for name in now if before.get(name) != now[name]]
    if not differing:
        return
    told = ", ".join(f"{name} {before.get(name)} (now {now[name]})" for name in differing)
    if deciding(before) != deciding(now) and not other_versions:
        raise UserError(
            f"{what} was begun with {told}, which make other numbers: install those, begin anew, or mix them "
            "(--other-versions; in Python other_versions=True)"
        )
    warnings.warn(OtherVersionsWarning(f"{what} was begun with {told}"), stacklevel=2)
