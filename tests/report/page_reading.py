"""Reads what a page carries, by the words of its format and nothing of the package: for comparison with the trace."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

LITTLE_PAGE = """<!doctype html>
<html><head><title>ö</title><script>let a = "<b>" ;</script></head>
<body><script id="sinkscope-data" type="application/json">null</script>
<SCRIPT type="module">
a()
</SCRIPT></body></html>
"""
"""Stands for the built page: two scripts of its own, and the place for the document."""


class _Elements(HTMLParser):
    """What a browser would see: the text of the data element, and every element that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.data: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self._inside = ("id", "sinkscope-data") in attrs

    def handle_endtag(self, _: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.data.append(data)


def elements(page: str) -> list[str]:
    """Names of all elements, in their order."""
    parser = _Elements()
    parser.feed(page)
    return parser.names


def read_page(page: str) -> dict[str, Any]:
    """The document in a page."""
    parser = _Elements()
    parser.feed(page)
    return read_json("".join(parser.data))


def read_json(text: str) -> dict[str, Any]:
    """A document's text: strict JSON that can stand in an element of script."""
    assert text.isascii()
    assert not re.search("[<\n\r]", text)

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    document: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return document


def read_array(entry: dict[str, Any]) -> NDArray[Any]:
    """The numbers of an array that comes with the document."""
    raw = gzip.decompress(base64.b64decode(entry["data"], validate=True))
    shape = tuple(entry["shape"])
    if entry["dtype"] == "bits":
        bits = [byte >> (7 - place) & 1 for byte in raw for place in range(8)]
        return np.array(bits[: int(np.prod(shape))], dtype=bool).reshape(shape)
    array = np.frombuffer(raw, dtype={"uint8": "u1", "int32": "<i4", "float32": "<f4"}[entry["dtype"]]).reshape(shape)
    if entry.get("delta") == "step":
        array = (np.cumsum(array.astype(np.int64), axis=0) % 256).astype(np.uint8)
    return array if entry["encoding"] is None else values_of(array, entry["encoding"])


def values_of(codes: NDArray[np.uint8], encoding: dict[str, Any]) -> NDArray[np.float64]:
    """The numbers that codes stand for."""
    assert encoding["kind"] == "log"
    ratio, steps = encoding["high"] / encoding["low"], encoding["codes"] - 1
    there = (codes != encoding["missing"]) & (codes != encoding["zero"])
    assert codes[there].max(initial=1) <= encoding["codes"]
    values: NDArray[np.float64] = encoding["low"] * ratio ** ((codes.astype(float) - 1) / steps)
    values = np.minimum(values, np.inf if encoding["most"] is None else encoding["most"])
    values[codes == encoding["zero"]] = 0
    values[codes == encoding["missing"]] = np.nan
    return values


def check_close(found: NDArray[np.float64], true: NDArray[Any], encoding: dict[str, Any]) -> None:
    """Missing and zero where they were; within the stated error from `low` on, within `low` below."""
    true = true.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(true))
    np.testing.assert_array_equal(found == 0, true == 0)
    large = true >= encoding["low"]
    errors = np.abs(found[large] / true[large] - 1)
    assert errors.max(initial=0) <= encoding["worst_relative_error"] + 1e-6
    small = (true > 0) & (true < encoding["low"])
    assert np.all(found[small] == encoding["low"])
