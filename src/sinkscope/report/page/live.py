"""What a server of the page gives: the page with all but attention in it, and attention one step at a time.

    live = Live(lambda: choose(paths)[0])
    live.page()                                    # reads the traces as they are now
    live.step("data/0/3/received/17")              # gzip bytes of the codes, None where there is no such step

A step costs about 20 ms for 32 layers x 32 heads x 165 positions, most of it reading the 16 steps that are stored
together; the last steps asked for are kept. Arrays are known by the names that the page was told. Nothing that is asked
for is ever taken for a path.

Where it misleads: a sample that is begun anew (`--resume`, `--overwrite`) is gone for the page that shows it: load the
page anew.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sinkscope.report.page.document import Attention, Place, Stepwise, document_text
from sinkscope.report.page.packing import Entry, pack_step, served_entry
from sinkscope.report.page.quantising import fair_scale
from sinkscope.report.page.selecting import Showing, default_title
from sinkscope.report.page.template import Template
from sinkscope.trace.groups import METADATA, read_header

KEPT_STEPS = 64
_STEP = re.compile(r"(?P<array>[a-z_0-9/]+)/(?P<step>[0-9]{1,9})", re.ASCII)


Recording = tuple[int, int]


@dataclass(frozen=True, eq=False)
class _Served:
    """An array that the page may ask for, the folder of the sample that it is of, and which recording lay there."""

    values: Stepwise
    folder: Path
    recording: Recording | None


class Live:
    """The page of what `showings` gives, which is asked anew whenever the page is loaded."""

    def __init__(self, showings: Callable[[], Sequence[Showing]], template: Template, title: str | None = None) -> None:
        self._showings = showings
        self._template = template
        self._title = title
        self._arrays: dict[str, _Served] = {}
        self._packed = lru_cache(maxsize=KEPT_STEPS)(_pack)

    def page(self) -> bytes:
        """The page as the traces are now. Raises `UserError` where one can't be read any more."""
        showings, arrays = self._showings(), dict[str, _Served]()

        def served(place: Place) -> Attention:
            number, index = place
            folder = showings[number].folder(index)
            recording = _recording(folder)

            def entry(name: str, values: Stepwise) -> Entry:
                address = f"data/{number}/{index}/{name}"
                arrays[address] = _Served(values, folder, recording)
                return served_entry(address, values.shape, fair_scale(values.shape[-1]))

            return entry

        document = document_text(self._title or default_title(showings), showings, served)
        page = b"".join(self._template.around(document))
        # Pages that are open already go on asking by the same addresses.
        self._arrays = arrays
        return page

    def step(self, address: str) -> bytes | None:
        """The bytes of one step of an array, or None where there is none (any more).

        Raises OSError, RuntimeError or ValueError where it is there and can't be read.
        """
        asked = _STEP.fullmatch(address)
        served = self._arrays.get(asked["array"]) if asked else None
        if asked is None or served is None or int(asked["step"]) >= served.values.shape[0]:
            return None
        try:
            header = read_header(0, served.folder)
            # Cut since, it may not hold the step any more.
            held = header is not None and int(asked["step"]) < header.steps
            packed = self._packed(served, int(asked["step"])) if held and _is_there(served) else None
        except (OSError, RuntimeError, ValueError):
            if _is_there(served):
                raise
            return None
        # Only now is it sure that no other recording was begun there while this was read.
        return packed if _is_there(served) else None


def _recording(folder: Path) -> Recording | None:
    """What tells a recording of a sample from the next in the same folder, None where there is none.

    A file that is written once, when the sample is begun, and never while it grows.
    """
    try:
        found = (folder / "layer" / METADATA).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _is_there(served: _Served) -> bool:
    return served.recording is not None and _recording(served.folder) == served.recording


def _pack(served: _Served, step: int) -> bytes:
    values = served.values.steps(slice(step, step + 1))
    return pack_step(values, fair_scale(values.shape[-1]))
