"""The page itself, in which one element waits for the document; built from `frontend/`, and part of the package.

page = read_template()
b"".join(page.around(document))
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from sinkscope.errors import UserError

PAGE = Path(__file__).with_name("page.html")
_OPEN, _CLOSE = '<script id="sinkscope-data" type="application/json">', "</script>"
PLACEHOLDER = f"{_OPEN}null{_CLOSE}"
_SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<code>.*?)</script>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class Template:
    """The page before and after the document."""

    head: str
    tail: str

    def around(self, document: Iterable[str]) -> Iterator[bytes]:
        """The page with a document in it, in parts."""
        for part in chain([self.head], document, [self.tail]):
            yield part.encode()

    def script_hashes(self) -> list[str]:
        """The page's own scripts as a content security policy names them: "'sha256-...'", in their order."""
        scripts = _SCRIPT.finditer(self.head + _CLOSE + self.tail)
        return [_hash(one["code"]) for one in scripts if "application/json" not in one["attributes"]]


def read_template(file: Path | None = None) -> Template:
    """The page, of the package or in a file. Raises `UserError` where it is missing or has no place for a document."""
    file = file or PAGE
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the page {file} can't be read ({error.strerror}): build it in frontend/") from error
    parts = text.split(PLACEHOLDER)
    if len(parts) != 2:
        raise UserError(f"the page {file} has {len(parts) - 1} places for its data, expected one: build it anew")
    return Template(parts[0] + _OPEN, _CLOSE + parts[1])


def _hash(code: str) -> str:
    digest = hashlib.sha256(code.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
