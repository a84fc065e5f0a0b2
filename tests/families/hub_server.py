"""A stand-in for the hub on this machine: its API and its files over HTTP, as `huggingface_hub` asks for them."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Repositories by name, each a folder; gated ones list their files and give none."""

    repositories: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    given: Counter[str] = field(default_factory=Counter)
    """Bytes of every file that went out."""
    listing: bytes | None = None
    """What is answered in place of a repository's list of files."""
    asked: int = 0
    address: str = ""


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub at `hub.address`, while the block runs."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            hub.asked += 1
            path = unquote(urlsplit(self.path).path)
            listed = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
            file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            found = listed or file
            name = found[1] if found else ""
            if name not in hub.repositories:
                self.refuse(401 if listed else 404, "RepoNotFound", body)
            elif (listed and listed[3] not in (None, "main", COMMIT)) or (file and file[2] not in ("main", COMMIT)):
                self.refuse(404, "RevisionNotFound", body)
            elif listed:
                files = sorted(one for one in hub.repositories[name].rglob("*") if one.is_file())
                places = {str(one.relative_to(hub.repositories[name])): one.stat().st_size for one in files}
                self.tell(name, places, tree=listed[2] == "tree", body=body)
            elif file and name in hub.gated:
                self.refuse(403, "GatedRepo", body)
            elif file and (hub.repositories[name] / file[3]).is_file():
                self.give(hub.repositories[name] / file[3], body)
            else:
                self.refuse(404, "EntryNotFound", body)

        def tell(self, name: str, places: dict[str, int], *, tree: bool, body: bool) -> None:
            found: object = [
                {"type": "file", "path": place, "size": size, "oid": "0" * 40} for place, size in places.items()
            ]
            if hub.listing is not None:
                self.send(200, hub.listing, {"Content-Type": "application/json"}, body)
                return
            if not tree:
                siblings = [{"rfilename": place, "size": size} for place, size in places.items()]
                found = {"id": name, "sha": COMMIT, "siblings": siblings}
            self.send(200, json.dumps(found).encode(), {"Content-Type": "application/json"}, body)

        def give(self, file: Path, body: bool) -> None:
            content = file.read_bytes()
            told = {"ETag": f'"{sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if part:
                start, stop = int(part[1]), min(len(content), int(part[2] or len(content)) + 1)
                told["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
                content = content[start:stop]
            hub.given[file.name] += len(content) if body else 0
            self.send(206 if part else 200, content, told, body)

        def refuse(self, status: int, code: str, body: bool) -> None:
            self.send(status, b"", {"X-Error-Code": code, "X-Error-Message": "no"}, body)

        def send(self, status: int, content: bytes, told: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for header, value in {**told, "Content-Length": str(len(content))}.items():
                self.send_header(header, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
