"""A server that speaks S3 (moto's) on the loopback, with failures in front of it.

Run as a script it takes a port and the port of a server, and passes bytes on between them until it is killed: a server
that dies and comes back with what it had, which moto, whose objects are in memory, can't.
"""

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

BUCKET = "bucket"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
Start = Callable[..., Any]


class Failing:
    """moto, whose requests are counted and may fail. fail: gives for method and path "busy", "torn", "slow" or None."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._application = DomainDispatcherApplication(create_backend_app)
        self.fail: Callable[[str, str], str | None] = lambda *_: None
        self.requests: list[tuple[str, str]] = []
        self.bytes_out = 0

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, f"{path}?{environ['QUERY_STRING']}".rstrip("?")))
        how = self.fail(method, path)
        if how == "busy":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code></Error>"]
        if how == "torn":  # half of what was sent arrives, then the line is dead
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        if how == "unheard":  # all is done, and nobody is told
            list(self._application(environ, lambda *_: None))
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        return self._counted(self._application(environ, start), slow=how == "slow")

    def _counted(self, parts: Iterable[bytes], slow: bool) -> Iterator[bytes]:
        for part in parts:
            self.bytes_out += len(part)
            pieces = [part[at : at + 200] for at in range(0, len(part), 200)] if slow else [part]
            for piece in pieces:
                time.sleep(0.02 * slow)
                yield piece


class ObjectServer:
    """It, running, with an empty bucket. Its port is on the loopback alone."""

    def __init__(self) -> None:
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self.app = Failing()
        self._server = make_server("127.0.0.1", 0, self.app, threaded=True)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def make_bucket(self) -> None:
        """Unsigned, as moto lets anyone."""
        import urllib.request

        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT")
        request.add_header("Host", "s3.amazonaws.com")
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request")
        urllib.request.urlopen(request).close()

    def close(self) -> None:
        self._server.shutdown()


def forward(port: int, to: int) -> None:
    """Pass bytes on until this process ends."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        print("ready", flush=True)
        while True:
            here, _ = listening.accept()
            there = socket.create_connection(("127.0.0.1", to))
            for pair in ((here, there), (there, here)):
                threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for one in (source, sink):
            one.close()


if __name__ == "__main__":
    forward(int(sys.argv[1]), int(sys.argv[2]))
