"""The page served from this machine to a browser on it, for traces that are too large for one file.

    live = Live(lambda: choose(paths)[0], read_template())
    with PageServer(live, read_template(), port=0) as server:
        print(server.url)
        server.serve_forever()

`Live` gives the page with all but attention in it, and attention a step at a time: `live.step("data/0/3/received/17")`
is gzip bytes of codes. A step costs about 20 ms for 32 layers x 32 heads x 165 positions, most of it reading the 16
steps that are stored together; the last steps asked for are kept. Nothing that is asked for is taken for a path.

The server listens on the loopback address alone, under a path that nobody can guess: other users of the machine can
connect, but are given nothing. Only reading is offered, and only what `Live` knows by name. A page of another site gets
no answer that it could read: requests by any other name than this machine's are refused, since a site can make a name
of its own point here, and answers may not be framed or taken over by other origins.

Where it misleads: a sample that is begun anew (`--resume`, `--overwrite`) is gone for the page that shows it: load the
page anew.
"""

import errno
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any

from sinkscope.errors import UserError
from sinkscope.report.page.document import Attention, Place, Stepwise, document_text
from sinkscope.report.page.packing import Entry, pack_step, served_entry
from sinkscope.report.page.selecting import Showing, default_title
from sinkscope.report.page.writing import Template
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
                return served_entry(address, values.shape, values.scale())

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
    return pack_step(values, served.values.scale())


ADDRESS = "127.0.0.1"
_OWN_NAME = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.ASCII)
"""What a browser may call this machine; the port may be another one, at the near end of a tunnel."""
_TEXT = "text/plain; charset=utf-8"


class PageServer(ThreadingTCPServer):
    """Answers on `url` until it is stopped, a thread for each connection. Port 0: any that is free.

    Raises `UserError` where the port can't be had.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024
    """Connections that may wait: a browser opens several for each tab, a program hundreds."""

    def __init__(self, live: Live, template: Template, port: int = 0) -> None:
        self.live = live
        self.root = f"/{secrets.token_urlsafe(16)}/"
        self.answer_headers = _answer_headers(template)
        try:
            super().__init__((ADDRESS, port), _Answer)
        except OSError as error:
            why = "another program uses it" if error.errno == errno.EADDRINUSE else error.strerror
            raise UserError(f"port {port} can't be had ({why}): name another, or none (--port 0)") from error

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_address[1]}{self.root}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is nobody's mistake."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Answer(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True
    """Head and body are sent apart: the body would wait 40 ms for the head's acknowledgement."""
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = "text/plain; charset=utf-8"

    def do_GET(self) -> None:
        names = self.headers.get_all("Host") or []
        if len(names) != 1 or not _OWN_NAME.fullmatch(names[0]):
            self._say(HTTPStatus.FORBIDDEN, "ask by the address that `sinkscope view` printed")
            return
        path, root = self.path.partition("?")[0], self.server.root
        if not secrets.compare_digest(path[: len(root)].encode(), root.encode()):
            self._say(HTTPStatus.NOT_FOUND, "not found: the address that `sinkscope view` printed is the only one")
            return
        try:
            status, kind, body = self._found(path[len(root) :])
        except UserError as error:
            status, kind, body = HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, _line(str(error))
        except (OSError, RuntimeError, ValueError) as error:
            why = (error.strerror or error) if isinstance(error, OSError) else error
            line = _line(f"the trace is damaged or can't be read ({why})")
            status, kind, body = HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, line
        self._send(status, kind, body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def end_headers(self) -> None:
        for name, value in self.server.answer_headers.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "sinkscope"

    def log_message(self, *_: object) -> None:
        """Nobody reads along."""

    def _found(self, name: str) -> tuple[HTTPStatus, str, bytes]:
        if not name:
            return HTTPStatus.OK, "text/html; charset=utf-8", self.server.live.page()
        step = self.server.live.step(name)
        if step is None:
            return HTTPStatus.NOT_FOUND, _TEXT, _line("there is no such step (any more): load the page anew")
        return HTTPStatus.OK, "application/octet-stream", step

    def _say(self, status: HTTPStatus, line: str) -> None:
        self._send(status, _TEXT, _line(line))

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _line(text: str) -> bytes:
    return f"{' '.join(text.split())}\n".encode(errors="backslashreplace")


def _answer_headers(template: Template) -> dict[str, str]:
    """What every answer carries: the page runs its own scripts alone, loads nothing from elsewhere and is shown
    nowhere else."""
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(template.script_hashes()) or "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "font-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cache-Control": "no-store",
    }
