"""Traces, cells and figures to the Hugging Face hub and back, as data sets.

    push(Path("runs/grid"), read_address("hf://datasets/someone/sinks/grid"))
    pull(read_address("hf://datasets/someone/sinks@main/grid"), Path("runs/theirs"))

Only files that sinkscope itself writes travel (`folders.py`), either way. A push adds a card, README.md, that says what
the folder is; a card that somebody wrote or edited is left alone. What is pulled is checked, and takes its name when it
is whole. `huggingface_hub` does the rest: the token is that of the login or of HF_TOKEN, and the same command goes on
with a push or a pull that was cut short.

Costs: a listing of the repository, and what is not there yet. Misleads: settings travel with the numbers, and a model
that was opened from a folder is named by its path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.hf_api import RepoFile

from sinkscope.errors import UserError, refusing
from sinkscope.families.hub import hub_refusals
from sinkscope.grids.store import FAILED
from sinkscope.report.folders import NOT_OURS, Held, is_own, kind_of, look_into
from sinkscope.trace.lock import LOCK, WriterLock

_ADDRESS = re.compile(
    r"hf://datasets/(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[^@\s]+?))??(/(?P<path>\w[\w.-]*(/\w[\w.-]*)*))?/?",
    re.ASCII,
)
_CARD = "README.md"
_MARK = "<!-- sinkscope push {digest}: replaced by the next push, unless it was edited -->\n"
_UNFINISHED = ".pulling"
_BEGUN = Path(".cache/huggingface")
"""Where `huggingface_hub` keeps what it needs to go on."""
_KIND = "dataset"


@dataclass(frozen=True)
class DatasetPlace:
    """A folder of a data set on the hub. path: "" for all of it. revision: a branch, tag or commit; None for main."""

    name: str
    path: str = ""
    revision: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision.replace('/', '%2F')}" if self.revision else ""
        return f"hf://datasets/{self.name}{revision}{self.path and f'/{self.path}'}"

    def place(self, file: str) -> str:
        """Where a file of the folder stands in the repository."""
        return f"{self.path}/{file}" if self.path else file


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What a push or a pull did. commit: of the hub. card: "written", or "kept" where it is somebody's own."""

    held: Held
    commit: str
    card: str | None = None


def read_address(text: str) -> DatasetPlace:
    """From hf://datasets/OWNER/NAME[@REVISION][/PATH]; a slash in a revision is written %2F. Raises `UserError`."""
    found = _ADDRESS.fullmatch(text)
    if found is None or ".." in found["name"]:
        raise UserError(f"{text[:200]!r} is no address of a data set: write hf://datasets/OWNER/NAME[@REVISION][/PATH]")
    revision = found["revision"]
    return DatasetPlace(found["name"], found["path"] or "", revision and revision.replace("%2F", "/"))


def push(folder: Path, to: DatasetPlace, *, private: bool = False, overwrite: bool = False) -> Shared:
    """Upload what is ours of a folder, and a card; the repository is made where there is none.

    private: of a repository that is made. overwrite: files of another run that stand there are removed. Raises
    `UserError` for a folder that is none of ours, damaged, or being written; for an address where something else
    stands; and where the hub refuses.
    """
    os.fspath(folder)  # an address is refused
    with _unwritten(folder):
        held = look_into(folder)
        api = HfApi()
        with refusing(f"{folder} can't be pushed to {to}"), hub_refusals(to.name, to.revision, ""):
            api.create_repo(to.name, repo_type=_KIND, private=private or None, exist_ok=True)
            there = _listed(api, to, to.revision)
            stale = _stale(held, there, to, overwrite=overwrite)
            card = _written_card(api, held, to, there)
            said = api.upload_folder(
                repo_id=to.name, repo_type=_KIND, revision=to.revision, folder_path=folder, path_in_repo=to.path,
                commit_message=f"Push {held.what}",
                allow_patterns=_patterns(held),
                ignore_patterns=[pattern for place in held.others for pattern in (escape(place), f"{escape(place)}/*")],
                delete_patterns=[escape(place) for place in stale] or None,
            )  # fmt: skip
    return Shared(held=held, commit=said.oid, card=card)


def pull(address: DatasetPlace, out: Path) -> Shared:
    """Download what is ours of a data set, or of a folder in it, into `out`, which must not be there.

    It grows as `out.pulling`, where the next pull goes on with one that was cut short. Raises `UserError` for what is
    none of ours, for what does not open as what it should be, and where the hub refuses.
    """
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists already: name another folder")
    growing = out.with_name(f"{out.name}{_UNFINISHED}")
    if growing.exists() and not (growing / _BEGUN).is_dir():
        raise UserError(f"{growing} stands where {out.name} would grow: rename it, or name another folder")
    api = HfApi()
    with refusing(f"{address} can't be pulled"), hub_refusals(address.name, address.revision, ""):
        commit = api.dataset_info(address.name, revision=address.revision).sha or ""
        there = _listed(api, address, commit)
        own = _own(there, address)
        snapshot_download(
            address.name, repo_type=_KIND, revision=commit, local_dir=growing,
            allow_patterns=[f"{escape(address.path)}/*"] if address.path else None,
            ignore_patterns=[escape(address.place(place)) for place in there if place not in own],
        )  # fmt: skip
    _tidy(growing / address.path, own)
    held = look_into(growing / address.path)
    wrong = [place for place, size in own.items() if held.files.get(place) != size]
    if wrong:
        raise UserError(f"{address} did not come whole ({wrong[0]}): pull it again, or remove {growing}")
    with refusing(f"{out} can't be written", "name another folder"):
        shutil.rmtree(growing / _BEGUN.parent)
        (growing / address.path).rename(out)
        shutil.rmtree(growing, ignore_errors=True)
    return Shared(held=replace(held, folder=out, others=()), commit=commit)


def _tidy(folder: Path, own: Mapping[str, int]) -> None:
    """Remove what an earlier pull, of another commit, has left."""
    for one in folder.rglob("*"):
        place = one.relative_to(folder)
        if one.is_file() and place.as_posix() not in own and place.parts[:2] != _BEGUN.parts:
            one.unlink()


def _patterns(held: Held) -> list[str]:
    """What may travel, so that a file that appears in the folder meanwhile does not. Few, as each is tried on each."""
    names = {Path(place).name for place in held.files}
    few = {"c.*" if name.startswith("c.") else escape(name) for name in names}  # the chunks of a trace
    return [pattern for name in few for pattern in (name, f"*/{name}")]


def _listed(api: HfApi, address: DatasetPlace, revision: str | None) -> dict[str, int]:
    """Sizes of the files at an address, by their places from there on; none where nothing stands there."""
    try:
        found = list(
            api.list_repo_tree(address.name, address.path or None, recursive=True, repo_type=_KIND, revision=revision)
        )
    except EntryNotFoundError:
        return {}
    cut = len(address.place(""))
    return {one.path[cut:]: one.size for one in found if isinstance(one, RepoFile)}


def _own(there: Mapping[str, int], address: DatasetPlace) -> dict[str, int]:
    """Those that sinkscope writes. Raises `UserError` where an address holds none, with the folders below that do."""
    kind = kind_of(there)
    if kind is not None:
        return {place: size for place, size in there.items() if is_own(kind, place)}
    below: dict[str, list[str]] = {}
    for place in there:
        parts = place.split("/")
        for depth in range(1, len(parts)):
            below.setdefault("/".join(parts[:depth]), []).append("/".join(parts[depth:]))
    ours = [folder for folder, inside in below.items() if kind_of(inside) is not None]
    tops = [one for one in ours if not any(one.startswith(f"{other}/") for other in ours)]
    named = [str(DatasetPlace(address.name, address.place(one), address.revision)) for one in tops]
    more = f"; name one of {', '.join(named)}"
    raise UserError(f"{address} can't be pulled: {NOT_OURS}{more if tops else ''}")


def _stale(held: Held, there: Mapping[str, int], to: DatasetPlace, *, overwrite: bool) -> list[str]:
    """Files at the address that a push has to remove. Raises `UserError` where they must stay."""
    rest = [place for place in there if place not in held.files and place != _CARD and not place.startswith(".git")]
    foreign = [place for place in rest if not is_own(held.kind, place)]
    if foreign:
        raise UserError(f"{to} holds other files ({foreign[0]}): name another path in it")
    others = [place for place in rest if place != FAILED]  # which goes once its cells are there
    if others and not overwrite:
        raise UserError(f"{to} holds files of another run ({others[0]}): replace it (--overwrite) or name another path")
    return rest


def _written_card(api: HfApi, held: Held, to: DatasetPlace, there: Mapping[str, int]) -> str:
    """Upload the card, unless somebody's own stands there."""
    text = card(held, to)
    if _CARD in there:
        file = api.hf_hub_download(to.name, to.place(_CARD), repo_type=_KIND, revision=to.revision)
        before = Path(file).read_text(encoding="utf-8", errors="replace")
        if before == text:
            return "written"
        if not _is_ours(before):
            return "kept"
    api.upload_file(
        path_or_fileobj=text.encode(), path_in_repo=to.place(_CARD), repo_id=to.name, repo_type=_KIND,
        revision=to.revision, commit_message="Say what this is",
    )  # fmt: skip
    return "written"


def card(held: Held, to: DatasetPlace) -> str:
    """The data set's card: what the folder is, how to get and open it, and what it says of itself. The licence is left
    to whoever pushes."""
    address = DatasetPlace(to.name, to.path, to.revision)
    rows = "\n".join(f"| {name} | {value} |" for name, value in _flat(held.facts))
    opened = {
        "trace": "sinkscope sinks FOLDER",
        "cells": "sinkscope export --parquet FOLDER --out cells.parquet",
    }
    more = f"\n{opened[held.kind]}".replace("FOLDER", held.folder.name) if held.kind in opened else ""
    text = f"""---
pretty_name: {json.dumps(held.what)}
tags: [sinkscope, attention-sinks, {held.kind}]
viewer: false
---

# {held.what[0].upper()}{held.what[1:]}

Made with sinkscope: {len(held.files)} files, {sum(held.files.values())} bytes. Its licence is not stated here; whoever
owns it adds `license:` to the head of this card.

```sh
sinkscope pull {address} --out {held.folder.name}{more}
```

| it says of itself | |
|---|---|
{rows}
"""
    return text + "\n" + _MARK.format(digest=_digest(text))


def _is_ours(text: str) -> bool:
    """Whether a card is one that a push wrote and nobody edited."""
    body, _, mark = text.rpartition("\n<!--")
    return f"<!--{mark}" == _MARK.format(digest=_digest(body))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _flat(facts: Mapping[str, Any], name: str = "") -> Iterator[tuple[str, str]]:
    """Names with dots, and values that can stand in a table of Markdown."""
    for key, value in facts.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{name}{key}.")
        elif value is not None:
            told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            plain = " ".join(told.replace("`", "'").replace("|", "\\|").split())
            yield f"{name}{key}".replace("|", "\\|"), f"`{plain}`"


@contextmanager
def _unwritten(folder: Path) -> Iterator[None]:
    """Let nobody write into a folder, or a shard in it, meanwhile, as far as they can be written at all."""
    with ExitStack() as locks:
        for place in [folder, *(one.parent for one in folder.glob(f"*/*/{LOCK}"))]:
            with suppress(OSError):
                locks.callback(WriterLock(place).release)
        yield
