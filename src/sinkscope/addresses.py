"""Addresses of object stores, which stand where the path of a folder does: `s3://bucket/run`, `gs://`, `az://`.

    place("runs/x")                              # a plain path, and so is file:///home/me/runs/x
    place("s3://bucket/run") / "table.md"        # an `Address`: an object, whole or not there at all

An `Address` is a path that knows what traces and cells need: it is read and written whole, listed, and replaced only
where nobody else has replaced it meanwhile (conditional writes). Whatever else takes it for a file of this machine is
told so in one line. `memory://run` lives as long as the process. Credentials, region and endpoint come from the
environment alone, as obstore reads it. What fails for a moment is tried again by obstore for about a minute.

All errors of a store are `OSError`s whose `strerror` is a few words of ours, as answers of servers are long and may
quote what was sent. Where it misleads: a listing is not a snapshot, objects may come and go while it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from errno import EACCES, EEXIST, EIO, ENOENT, ENXIO
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import unquote

from sinkscope.errors import UserError

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig

T = TypeVar("T")
R = TypeVar("R")
SCHEMES = ("s3", "gs", "az", "memory")
AT_ONCE = 32
"""Requests that are under way together."""
RETRIES = 14
"""After a request that failed; they rest 0.1 s at first and up to 10 s at last."""
_FIRST_RETRIES = 2
"""Before any work, where a mistake is likelier than a server that is away."""
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)|((?i:s3|gs|az|memory|file)):/(.*)", re.DOTALL)
"""The second: what became of the slashes in a `Path`."""
_REASONS = (
    (r"NoSuchBucket|bucket does not exist|ContainerNotFound", "there is no such bucket"),
    (r"169\.254\.169\.254|TokenRequest|MissingCredential|NoCredential", "the environment holds no credentials for it"),
    (r"MissingAccount", "the environment names no account, such as AZURE_STORAGE_ACCOUNT_NAME"),
    (r"redirect without LOCATION", "the bucket lies in another region: set AWS_REGION"),
    (r"URL scheme is not allowed|BadScheme", "the endpoint is http, which needs AWS_ALLOW_HTTP=true"),
    (r"kind: Timeout|TimedOut|timed out", "the store does not answer in time"),
    (r"kind: (Connect|Request|Interrupted)|error sending request", "the store can't be reached"),
    (r"<Code>(\w{1,40})</Code>", "the store answers {}"),
    (r"status code: (\d{3})", "the store answers {}"),
)


def place(where: str | Path) -> Path:
    """The folder or file that is meant: an `Address`, or a path of this machine.

    Raises `UserError` for an address of an unknown kind, one that holds credentials (which are not repeated), and where
    the package that reads addresses is missing.
    """
    found = None if isinstance(where, Address) else _ADDRESS.fullmatch(str(where))
    if found is None:
        return Path(where) if isinstance(where, str) else where
    scheme, rest = (found[1] or found[3]).lower(), found[2] or found[4] or ""
    first = rest.lstrip("/").partition("/")[0]
    if re.search(r"[?#]", rest) or re.search("[@:]", first):
        raise UserError(
            f"an address is {scheme}://BUCKET/FOLDER without @, : or ?; credentials are read from the environment alone"
        )
    if scheme == "file":
        if found[1] and not rest.startswith("/"):
            raise UserError(f"file://{rest} names no folder: three slashes go before an absolute path")
        return Path("/" + unquote(rest).lstrip("/"))
    if scheme not in SCHEMES:
        raise UserError(f"{scheme}:// is no address that is known: choose {', '.join(SCHEMES)} or file, or a folder")
    parts = [one for one in rest.split("/") if one]
    if len(parts) < 1 + (scheme != "memory") or {".", ".."} & {*parts}:
        raise UserError(f"an address names a bucket and a folder in it, {scheme}://bucket/run, without . and ..")
    if find_spec("obstore") is None:
        raise UserError(f"{scheme}:// needs more packages; run: pip install 'sinkscope[cloud]'")
    address = Address(f"{scheme}:/", *parts)
    try:
        with telling(address):
            address.client()
    except OSError as error:
        raise UserError(f"{address} can't be reached ({error.strerror})") from None
    return address


class Address(PosixPath):
    """An object of a store, or a folder of them: all objects whose names go on from its own after a slash."""

    __slots__ = ()

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def __fspath__(self) -> NoReturn:
        raise UserError(f"{self} is an address, where traces and cells alone can be kept: name a folder or file")

    @property
    def root_address(self) -> str:
        """The bucket's; all of the memory is one."""
        return "memory://" if self.parts[0] == "memory:" else f"{self.parts[0]}//{self.parts[1]}"

    @property
    def key(self) -> str:
        """Its name in the bucket."""
        return "/".join(self.parts[1 if self.parts[0] == "memory:" else 2 :])

    def exists(self) -> bool:
        """Whether there is an object of this name, or one below it."""
        try:
            with telling(self):
                self.client().head(self.key)
        except FileNotFoundError:
            return _holds_any(self, RETRIES)
        return True

    def iterdir(self) -> Iterator[Path]:  # type: ignore[override]  # of a `Generator` in later versions of typeshed
        """Objects and folders right in this one. Raises `FileNotFoundError` where there is none."""
        from obstore import list_with_delimiter

        with telling(self):
            found = list_with_delimiter(self.client(), self.key)
        names = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        if not names:
            raise FileNotFoundError(ENOENT, "there is nothing", str(self))
        return (self / name.rpartition("/")[2] for name in names)

    def read_bytes(self) -> bytes:
        """All of the object. Raises `FileNotFoundError` where there is none."""
        return self.get()[0]

    def get(self) -> tuple[bytes, str]:
        """All of the object, and its tag, which changes when it is replaced."""
        with telling(self):
            found = self.client().get(self.key)
            return bytes(found.bytes()), str(found.meta["e_tag"])

    def put(self, content: bytes, tag: str | None = "") -> str:
        """Write the object whole and return its tag. tag: "" replaces any; None only where there is none yet; else only
        the one with this tag. Raises `FileExistsError` where another writer was there first."""
        how: Any = "overwrite" if tag == "" else "create" if tag is None else {"e_tag": tag}
        try:
            with telling(self):  # in one request: what takes several is no conditional write at every store
                return str(self.client().put(self.key, content, mode=how, use_multipart=False)["e_tag"])
        except FileExistsError:
            found, now = self.get()  # an answer may have been lost on the way, and the request sent again
            if found != content:
                raise
            return now

    def client(self, retries: int | None = None) -> ObjectStore:
        """Of its bucket."""
        return _client(self.root_address, RETRIES if retries is None else retries)


def beside(where: Path, ending: str) -> Path:
    """A name with another ending for what is made of it on this machine: beside a folder, here for an address."""
    name = f"{where.name.removesuffix('.zarr')}{ending}"
    return Path(name) if isinstance(where, Address) else where.with_name(name)


def reach(where: str | Path) -> Path:
    """The place as `place` gives it. Raises `UserError` where it is an address whose store can't be reached or read."""
    where = place(where)
    if isinstance(where, Address):
        try:
            _holds_any(where, _FIRST_RETRIES)
        except OSError as error:
            raise UserError(f"{where} can't be reached ({error.strerror})") from None
    return where


def delete(folder: Address, names: Iterable[str]) -> None:
    """Delete the objects of these names in a folder."""
    keys = [f"{folder.key}/{name}" for name in names]
    with telling(folder):
        if keys:
            folder.client().delete(keys)


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file below a folder, by its name in there."""
    if not isinstance(folder, Address):
        files = (one for one in folder.rglob("*") if one.is_file())
        return {str(one.relative_to(folder)): one.stat().st_size for one in files}
    with telling(folder):
        found = [one for some in folder.client().list(folder.key) for one in some]
    return {one["path"][len(folder.key) + 1 :]: one["size"] for one in found}


def _holds_any(folder: Address, retries: int) -> bool:
    """Whether there is an object below it."""
    with telling(folder):
        return any(folder.client(retries).list(folder.key))


def each(function: Callable[[T], R], items: Iterable[T], folder: Path) -> list[R]:
    """What the function gives for each item, in their order; many at once where the folder is an address, as every
    request waits for its answer."""
    if not isinstance(folder, Address):
        return [function(one) for one in items]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, items))


@cache
def _client(root: str, retries: int) -> ObjectStore:
    from obstore.store import MemoryStore, from_url

    if root == "memory://":
        return MemoryStore() if retries == RETRIES else _client(root, RETRIES)
    retrying: RetryConfig = {
        "max_retries": retries,
        "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2},
        "retry_timeout": timedelta(seconds=180),
    }
    return from_url(root, retry_config=retrying)


@contextmanager
def telling(address: Address) -> Iterator[None]:
    """Turn what a store raises into an `OSError` of a few words, without what the server said."""
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

    try:
        yield
    except OSError as error:
        if error.errno is not None:  # one of ours
            raise
        missing = _reason(error)
        if missing == _REASONS[0][1]:
            raise OSError(ENXIO, missing, str(address)) from None
        raise FileNotFoundError(ENOENT, "there is no such object", str(address)) from None
    except (AlreadyExistsError, PreconditionError):
        raise FileExistsError(EEXIST, "another process has written it", str(address)) from None
    except (BaseError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        refused = type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError")
        raise OSError(EACCES if refused else EIO, _reason(error), str(address)) from None


def _reason(error: Exception) -> str:
    said = str(error)
    for pattern, reason in _REASONS:
        found = re.search(pattern, said)
        if found:
            return reason.format(*found.groups()[:1])
    return f"the store refuses it, {type(error).__name__}"
