"""The page from a server: on a real socket, what it gives and what it never gives."""

import gzip
import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from page_reading import LITTLE_PAGE, check_close, read_array, read_page, values_of

from sinkscope.decoding import Denoising
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.report.page import Live, PageServer, choose, read_template
from sinkscope.report.page.serving import ADDRESS
from sinkscope.trace import Counts, Prompt, Statistics, TraceStore, open_trace, plan_layout, record


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


class Visitor:
    """A browser's requests to a server."""

    def __init__(self, server: PageServer) -> None:
        self.server = server
        address = urlsplit(server.url)
        self.host, self.port, self.root = str(address.hostname), int(address.port or 0), address.path

    def ask(self, path: str, method: str = "GET", *, host: str | None = None, body: bytes | None = None) -> Answer:
        """Ask for a path below the page's own."""
        return self.ask_whole(self.root + path, method, host=host, body=body)

    def ask_whole(
        self, path: str, method: str = "GET", *, host: str | None = None, body: bytes | None = None
    ) -> Answer:
        """Ask for a whole path."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        connection.request(method, path, body, {} if host is None else {"Host": host})
        answer = connection.getresponse()
        found = Answer(answer.status, dict(answer.getheaders()), answer.read())
        connection.close()
        return found

    def send(self, text: bytes) -> bytes:
        """Send bytes as they are, and read all that comes."""
        with socket.create_connection((self.host, self.port), timeout=10) as wire:
            wire.sendall(text)
            wire.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: wire.recv(65536), b""))

    def document(self) -> dict[str, Any]:
        """The document in the page as it is now."""
        return read_page(self.ask("").body.decode())


@pytest.fixture(scope="module")
def trace(tiny: Callable[[str], Model], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded trace with samples q0 and q1 of 8 steps."""
    out = tmp_path_factory.mktemp("traces") / "llada.zarr"
    prompts = [Prompt("q0", [5, 9, 2, 8]), Prompt("q1", [7, 3, 11])]
    record(tiny("llada-tiny"), prompts, Denoising(gen_length=8, block_length=4, steps=8), out=out)
    return out


@pytest.fixture
def visit(tmp_path: Path) -> Iterator[Callable[[Path], Visitor]]:
    """Serve a trace, and visit it."""
    (tmp_path / "page.html").write_text(LITTLE_PAGE, encoding="utf-8")
    template = read_template(tmp_path / "page.html")
    servers: list[PageServer] = []

    def begin(path: Path) -> Visitor:
        server = PageServer(Live(lambda: choose([path])[0], template, "ti<tle"), template)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return Visitor(server)

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def test_page_and_steps_are_those_of_the_trace(trace: Path, visit: Callable[[Path], Visitor]) -> None:
    visitor = visit(trace)
    document = visitor.document()
    assert document["title"] == "ti<tle"
    stored = open_trace(trace)
    [shown] = document["traces"]
    for sample in shown["samples"]:
        for name, array in sample["arrays"].items():
            true = stored[sample["id"]][name].values
            assert array["shape"] == list(true.shape)
            if array["encoding"] is None:
                np.testing.assert_array_equal(read_array(array), true)
                continue
            assert array["per_step"] is True
            for step in range(sample["steps"]):
                answer = visitor.ask(f"{array['url']}/{step}")
                assert (answer.status, answer.headers["Content-Type"]) == (200, "application/octet-stream")
                codes = np.frombuffer(gzip.decompress(answer.body), dtype=np.uint8).reshape(true.shape[1:])
                check_close(values_of(codes, array["encoding"]), true[step], array["encoding"])


def test_head_is_the_same_without_a_body(trace: Path, visit: Callable[[Path], Visitor]) -> None:
    visitor = visit(trace)
    for path in ("", "data/0/0/received/3", "nothing"):
        full, head = visitor.ask(path), visitor.ask(path, "HEAD")
        sent = visitor.send(f"HEAD {visitor.root}{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert full.body and sent.endswith(b"\r\n\r\n")
        assert head.status == full.status
        assert {**head.headers, "Date": ""} == {**full.headers, "Date": ""}


def test_only_what_is_known_by_name_is_given(
    trace: Path, visit: Callable[[Path], Visitor], capfd: pytest.CaptureFixture[str]
) -> None:
    visitor = visit(trace)
    (trace / "secret").write_text("secret")
    visitor.ask("")
    assert visitor.ask("data/0/0/received/7").status == 200
    for path in [
        "data/0/0/received/8", "data/0/0/received/-1", "data/0/0/received/1e0", "data/0/0/received/", "secret",
        "data/0/0/received/٣", "data/0/0/received/9999999999999999999999", "data/0/0/received", "data/0/2/received/0",
        "data/1/0/received/0", "data/0/0/canvas/0", "data/0/0/sequence/0", "data/0/0/../0/received/0",
        "data/0/0/received/../../../../secret", "../secret", "..%2fsecret", "%2e%2e/%2e%2e/etc/passwd",
        "....//....//etc/passwd", "/etc/passwd", "//etc/passwd", "data\\0\\0\\received\\0", "samples/000000/zarr.json",
        "zarr.json", "page.html", "index.html", ".", "data/0/0/received/0/", "data/0/0/received/0%00", "a" * 5000,
    ]:  # fmt: skip
        sent = visitor.send(f"GET {visitor.root}{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert sent.startswith(b"HTTP/1.1 404 "), path
        assert b"secret" not in sent and b"root:" not in sent and b"zarr_format" not in sent
    assert capfd.readouterr().err == ""


def test_nothing_is_given_outside_its_own_path(
    trace: Path, visit: Callable[[Path], Visitor], capfd: pytest.CaptureFixture[str]
) -> None:
    visitor = visit(trace)
    assert len(visitor.root) > 20
    assert visit(trace).root != visitor.root
    known = visitor.root.strip("/")
    for path in [
        "/",
        "",
        "/data/0/0/received/0",
        f"/{known[:-1]}/",
        f"/{known}",
        f"/{known.lower()}x/",
        "/é/",
        "http://[x/",
        "//[",
    ]:
        sent = visitor.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert sent.endswith(b"not found: the address that `sinkscope view` printed is the only one\n"), path
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1@evil.example",
     "127.0.0.1:1:2", "127.0.0.2", "0.0.0.0", "", "localhost:port", "[::1]", "127.0.0.1\t.evil.example"],
)  # fmt: skip
def test_other_names_are_refused(host: str, trace: Path, visit: Callable[[Path], Visitor]) -> None:
    visitor = visit(trace)
    answer = visitor.ask("", host=host)
    assert answer.status == 403
    assert b"sinkscope-data" not in answer.body


def test_own_names_are_answered_also_through_a_tunnel(trace: Path, visit: Callable[[Path], Visitor]) -> None:
    visitor = visit(trace)
    for host in ("localhost", f"localhost:{visitor.port}", "127.0.0.1", "localhost:9000"):
        assert visitor.ask("", host=host).status == 200


def test_no_name_and_two_names_are_refused(trace: Path, visit: Callable[[Path], Visitor]) -> None:
    visitor = visit(trace)
    for hosts in ("", "Host: localhost\r\nHost: evil.example\r\n"):
        sent = visitor.send(f"GET {visitor.root} HTTP/1.1\r\n{hosts}\r\n".encode())
        assert sent.startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "<b>"])
def test_only_reading_is_offered(method: str, trace: Path, visit: Callable[[Path], Visitor]) -> None:
    visitor = visit(trace)
    answer = visitor.send(
        f"{method} {visitor.root} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 34\r\n\r\n".encode()
        + f"GET {visitor.root} HTTP/1.1\r\n\r\n".encode()
    )
    assert answer.startswith(b"HTTP/1.1 501 ")
    assert answer.count(b"HTTP/1.1 ") == 1  # what came along was not taken for a request
    assert b"Content-Type: text/plain" in answer
    assert b"sinkscope-data" not in answer


def test_answers_say_what_a_browser_may_do(trace: Path, visit: Callable[[Path], Visitor]) -> None:
    visitor = visit(trace)
    for answer in (visitor.ask(""), visitor.ask("no"), visitor.ask("", host="evil.example"), visitor.ask("", "POST")):
        policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        # printf 'let a = "<b>" ;' | openssl dgst -sha256 -binary | base64, and so for the other script
        assert policy["script-src"] == (
            "'sha256-iU1cC7VlZuxciQLtJXjC8EWo23HvxtknDZcAxrJC+bc=' "
            "'sha256-x+0K41gpPfNZvjHhZ26OxEXtxRMEPkgtUEMZoFwk0HA='"
        )
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert "Python" not in answer.headers["Server"]


def test_loading_anew_shows_what_was_recorded_since(tmp_path: Path, visit: Callable[[Path], Visitor]) -> None:
    counts = Counts(max_steps=40, layers=1, heads=2, kv_heads=1, positions=3)
    layout = plan_layout(counts, Statistics())
    rng = np.random.default_rng(0)
    rows = rng.dirichlet([1, 1, 1], (40, 1, 2)).astype(np.float32)

    def row(step: int) -> dict[str, Any]:
        bounds = dict.fromkeys(["block", "block_start", "block_stop", "query_start", "query_stop"], 0)
        canvas = np.full(3, step, dtype=np.int32)
        nothing = {"committed": np.zeros(3, dtype=bool), "confidence": np.zeros(3, dtype=np.float32)}
        return {"received": rows[step], "canvas": canvas, **nothing, **bounds}

    with TraceStore.create(tmp_path / "t", {}) as store:
        writer = store.sample(0, "a", layout, {"prompt_length": 1})
        for step in range(20):
            writer.append(row(step))
        assert writer.steps == 16
        visitor = visit(tmp_path / "t")
        [sample] = visitor.document()["traces"][0]["samples"]
        assert (sample["steps"], sample["complete"], sample["tokens"]) == (16, False, None)
        assert sample["final_sequence"] == [15, 15, 15]
        assert visitor.ask("data/0/0/received/15").status == 200
        assert visitor.ask("data/0/0/received/16").status == 404
        for step in range(20, 40):
            writer.append(row(step))
        writer.finish({"sequence": [1, 2, 3]}, {})
        assert visitor.ask("data/0/0/received/15").status == 200
        assert visitor.ask("data/0/0/received/16").status == 404  # the page that is open does not know of it
        [sample] = visitor.document()["traces"][0]["samples"]
        assert (sample["steps"], sample["complete"]) == (40, True)
        codes = np.frombuffer(gzip.decompress(visitor.ask("data/0/0/received/33").body), dtype=np.uint8).reshape(
            1, 2, 3
        )
        encoding = sample["arrays"]["received"]["encoding"]
        check_close(values_of(codes, encoding), rows[33].astype(np.float16), encoding)


def test_a_sample_that_was_begun_anew_and_a_trace_that_is_gone(
    trace: Path, tmp_path: Path, visit: Callable[[Path], Visitor]
) -> None:
    copy = tmp_path / "copy.zarr"
    shutil.copytree(trace, copy)
    visitor = visit(copy)
    visitor.ask("")
    assert visitor.ask("data/0/1/received/2").status == 200
    file = copy / "samples" / "000001" / "zarr.json"
    document = json.loads(file.read_text())
    document["attributes"] |= {"steps": 2, "complete": False}
    file.write_text(json.dumps(document))
    assert visitor.ask("data/0/1/received/1").status == 200
    gone = visitor.ask("data/0/1/received/3")
    assert (gone.status, gone.body) == (404, b"there is no such step (any more): load the page anew\n")
    shutil.rmtree(copy)
    assert visitor.ask("data/0/0/received/3").status == 404
    missing = visitor.ask("")
    assert missing.status == 503
    assert missing.body.startswith(b"there is no trace at")
    assert visitor.ask("data/0/1/received/2").status == 404  # though it was read before


def test_many_ask_at_once(trace: Path, visit: Callable[[Path], Visitor]) -> None:
    visitor = visit(trace)
    visitor.ask("")
    alone = [visitor.ask(f"data/0/0/received/{step}").body for step in range(8)]
    found: dict[tuple[int, int], bytes] = {}

    def ask(number: int) -> None:
        for step in range(8):
            found[number, step] = visitor.ask(f"data/0/0/received/{step}").body

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {(number, step): alone[step] for number in range(6) for step in range(8)}


def test_it_listens_here_alone_and_a_port_is_had_once(trace: Path, visit: Callable[[Path], Visitor]) -> None:
    visitor = visit(trace)
    assert visitor.server.server_address == ("127.0.0.1", visitor.port)
    server = visitor.server
    with pytest.raises(UserError, match=rf"port {visitor.port} can't be had \(another program uses it\): name another"):
        PageServer(server.live, read_template(), visitor.port)


def test_a_visitor_that_leaves_is_no_mistake(
    trace: Path, visit: Callable[[Path], Visitor], capfd: pytest.CaptureFixture[str]
) -> None:
    visitor = visit(trace)
    for _ in range(5):
        with socket.create_connection((visitor.host, visitor.port)) as wire:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            wire.sendall(f"GET {visitor.root} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert visitor.ask("").status == 200
    assert capfd.readouterr().err == ""


def test_an_answer_does_not_wait_for_an_acknowledgement(trace: Path, visit: Callable[[Path], Visitor]) -> None:
    visitor = visit(trace)
    visitor.document()
    wire, times = http.client.HTTPConnection(visitor.host, visitor.port, timeout=10), []
    for _ in range(9):
        start = time.perf_counter()
        wire.request("GET", f"{visitor.root}data/0/0/received/0")
        wire.getresponse().read()
        times.append(time.perf_counter() - start)
    wire.close()
    assert min(times[1:]) < 0.03  # a delayed acknowledgement takes 40 ms, always


def test_many_connections_may_wait(trace: Path) -> None:
    template = read_template()
    with PageServer(Live(lambda: choose([trace])[0], template), template) as server, ExitStack() as waiting:
        for _ in range(200):  # none is accepted yet; the system keeps the connections
            waiting.enter_context(socket.create_connection((ADDRESS, server.server_address[1]), timeout=1))
