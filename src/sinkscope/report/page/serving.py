"""The page served from this machine to a browser on it, for traces that are too large for one file.

    with PageServer(live, port=0) as server:
        print(server.url)
        server.serve_forever()

It listens on the loopback address alone, under a path that nobody can guess: other users of the machine can connect,
but are given nothing. Only reading is offered, and only what `Live` knows by name. A page of another site gets no
answer that it could read: requests by any other name than this machine's are refused, since a site can make a name of
its own point here, and answers may not be framed or taken over by other origins.
"""

import errno
import re
import secrets
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from sinkscope.errors import UserError
from sinkscope.report.page.live import Live
from sinkscope.report.page.template import Template

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
