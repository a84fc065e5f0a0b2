"""A stand-in for the hub on this machine: its API and its files over HTTP, as `huggingface_hub` asks for them."""

import base64
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
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Repositories by name, each a folder; gated ones list their files and give none. Names of data sets begin with
    "datasets/"."""

    repositories: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    given: Counter[str] = field(default_factory=Counter)
    """Bytes of every file that went out."""
    listing: bytes | None = None
    """What is answered in place of a repository's list of files."""
    asked: int = 0
    address: str = ""
    home: Path | None = None
    """Where data sets that are made lie; none can be made without."""
    token: str | None = None
    """Whoever writes has to say."""
    torn: set[str] = field(default_factory=set)
    """Files that are cut off in the middle, once."""
    commits: list[dict[str, Any]] = field(default_factory=list)
    """What was written, in order: the values of each commit's lines, by path."""

    @property
    def head(self) -> str:
        """The commit of all branches of all repositories."""
        return f"{len(self.commits):040x}" if self.commits else COMMIT


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
            path = path.replace("/api/datasets/", "/api/models/datasets/")
            listed = re.fullmatch(
                r"/api/models/((?:datasets/)?[^/]+/[^/]+)(?:/(revision|tree)/([^/]+)(?:/(.+))?)?", path
            )
            file = re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            found = listed or file
            name = found[1] if found else ""
            if name not in hub.repositories:
                self.refuse(401 if listed else 404, "RepoNotFound", body)
            elif (listed and listed[3] not in (None, "main", hub.head)) or (file and file[2] not in ("main", hub.head)):
                self.refuse(404, "RevisionNotFound", body)
            elif listed:
                files = sorted(one for one in hub.repositories[name].rglob("*") if one.is_file())
                places = {str(one.relative_to(hub.repositories[name])): one.stat().st_size for one in files}
                below = {place: size for place, size in places.items() if place.startswith(f"{listed[4] or ''}/")}
                if listed[4] and not below:
                    self.refuse(404, "EntryNotFound", body)
                else:
                    self.tell(name, below if listed[4] else places, tree=listed[2] == "tree", body=body)
            elif file and name in hub.gated:
                self.refuse(403, "GatedRepo", body)
            elif file and (hub.repositories[name] / file[3]).is_file():
                self.give(hub.repositories[name] / file[3], body)
            else:
                self.refuse(404, "EntryNotFound", body)

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = unquote(urlsplit(self.path).path)
            told = re.fullmatch(r"/api/(datasets/[^/]+/[^/]+)/(preupload|commit)/([^/]+)", path)
            if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.send(401, b"{}", {"X-Error-Message": "Invalid username or password."}, body=True)
            elif path == "/api/validate-yaml":
                self.say({"errors": [], "warnings": []})
            elif path == "/api/repos/create":
                self.make(json.loads(content))
            elif not told or told[1] not in hub.repositories:
                self.refuse(404, "RepoNotFound", body=True)
            elif told[3] not in ("main", hub.head):
                self.refuse(404, "RevisionNotFound", body=True)
            elif told[2] == "preupload":
                files = [
                    {**one, "uploadMode": "regular", "shouldIgnore": False} for one in json.loads(content)["files"]
                ]
                self.say({"files": files})
            else:
                self.commit(told[1], [json.loads(line) for line in content.splitlines()])

        def make(self, asked: dict[str, Any]) -> None:
            name = f"datasets/{asked['organization']}/{asked['name']}"
            assert hub.home is not None
            if name in hub.repositories:
                self.send(
                    409,
                    json.dumps({"url": f"{hub.address}/{name}"}).encode(),
                    {"X-Error-Message": "You already created this dataset repo"},
                    body=True,
                )
                return
            hub.repositories[name] = hub.home / name
            hub.repositories[name].mkdir(parents=True)
            (hub.repositories[name] / ".gitattributes").write_text("*.bin filter=lfs\n")
            self.say({"url": f"{hub.address}/{name}"})

        def commit(self, name: str, lines: list[dict[str, Any]]) -> None:
            values = {line["value"]["path"]: line["value"] for line in lines if line["key"] != "header"}
            hub.commits.append(values)
            for line in lines[1:]:
                file = hub.repositories[name] / line["value"]["path"]
                if line["key"] == "deletedFile":
                    file.unlink()
                    continue
                assert line["key"] == "file"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(base64.b64decode(line["value"]["content"]))
            self.say(
                {"commitUrl": f"{hub.address}/{name}/commit/{hub.head}", "commitOid": hub.head, "pullRequestUrl": None}
            )

        def say(self, document: object) -> None:
            self.send(200, json.dumps(document).encode(), {"Content-Type": "application/json"}, body=True)

        def tell(self, name: str, places: dict[str, int], *, tree: bool, body: bool) -> None:
            found: object = [
                {"type": "file", "path": place, "size": size, "oid": "0" * 40} for place, size in places.items()
            ]
            if hub.listing is not None:
                self.send(200, hub.listing, {"Content-Type": "application/json"}, body)
                return
            if not tree:
                siblings = [{"rfilename": place, "size": size} for place, size in places.items()]
                found = {"id": name.removeprefix("datasets/"), "sha": hub.head, "siblings": siblings}
            self.send(200, json.dumps(found).encode(), {"Content-Type": "application/json"}, body)

        def give(self, file: Path, body: bool) -> None:
            content = file.read_bytes()
            told = {"ETag": f'"{sha256(content).hexdigest()}"', "X-Repo-Commit": hub.head, "Accept-Ranges": "bytes"}
            part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if part:
                start, stop = int(part[1]), min(len(content), int(part[2] or len(content)) + 1)
                told["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
                content = content[start:stop]
            hub.given[file.name] += len(content) if body else 0
            if body and file.name in hub.torn:
                hub.torn.remove(file.name)
                self.cut(content, told)
                return
            self.send(206 if part else 200, content, told, body)

        def cut(self, content: bytes, told: dict[str, str]) -> None:
            """Half of it, and the line goes dead."""
            self.send_response(200)
            for header, value in {**told, "Content-Length": str(len(content))}.items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.close_connection = True

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
