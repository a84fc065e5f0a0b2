"""What a repository on the hub holds: its small files are fetched, its weights are asked for their headers alone.

    folder = fetch("GSAI-ML/LLaDA-8B-Instruct", "main", weights=False)
    sizes = file_sizes("GSAI-ML/LLaDA-8B-Instruct", folder.name)
    headers("GSAI-ML/LLaDA-8B-Instruct", folder.name, ["model-00001-of-00006.safetensors"])

So a model can be described, and refused, before gigabytes of it are on this disk. Only JSON, tokenizer and safetensors
files at a repository's root are ever fetched, never code and never pickle. A header is read by range requests of
`huggingface_hub`, 100 kB for most files. The environment's switches (`HF_HUB_OFFLINE`, `HF_ENDPOINT`, `HF_TOKEN`) and
cache folder are honoured.

Costs: a request for the listing and one or two a weight file. Misleads: a hub that can't be reached is no error where
the small files are in the cache; the weights are then unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from sinkscope.errors import UserError, refusing, shortened
from sinkscope.families.packaged import PACKAGED

SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
"""Configurations and tokenizers."""
_TOGETHER = 8
"""Headers that are asked for at a time."""
_PATIENCE = 20.0
"""Seconds."""
_SHOWN = 3
_PICKLES = "its weights are pickles, which are not read from the hub; look for a revision with safetensors"
_TRIED = f"not a folder, not a packaged model ({', '.join(PACKAGED)}), "
_UNREACHED: tuple[type[Any], ...] = HfHubHTTPError.__bases__
"""Errors of the transport, which is another package in other versions of the hub's library."""

Header = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of the tensors of a file, by name."""


def fetch(name: str, revision: str | None, *, weights: bool) -> Path:
    """The snapshot of a repository in the cache, its files fetched where they are not there; the folder's name is the
    commit. weights: safetensors files too. Raises `UserError` where it can't be had."""
    patterns = [*SMALL_FILES, "*.safetensors"] if weights else [*SMALL_FILES]
    with refusing(f"{name} can't be fetched from the hub"), hub_refusals(name, revision):
        found = snapshot_download(name, revision=revision, allow_patterns=patterns, ignore_patterns=["*/*"])
    snapshot = Path(found)
    if not snapshot.is_dir():  # nothing there has such a name
        raise unfit(name, file_sizes(name, snapshot.name))
    return snapshot


def file_sizes(name: str, commit: str) -> dict[str, int]:
    """Bytes of the files at a repository's root; none where the hub can't be reached. Raises `UserError` where it
    refuses."""
    if constants.HF_HUB_OFFLINE:
        return {}
    with refusing(f"what the hub says of {name} can't be read"), hub_refusals(name, commit):
        try:
            told = HfApi().model_info(name, revision=commit, files_metadata=True, timeout=_PATIENCE)
        except HfHubHTTPError:
            raise
        except _UNREACHED:
            return {}
    return {one.rfilename: one.size or 0 for one in told.siblings or () if "/" not in one.rfilename}


def headers(name: str, commit: str, files: Iterable[str]) -> dict[str, Header]:
    """What safetensors files of a repository say of themselves, without their weights. Raises `UserError` for a file
    that is none."""
    api = HfApi()

    def read(file: str) -> tuple[str, Header]:
        with refusing(f"{name}: {file} is no whole safetensors file", "tell its owner"), hub_refusals(name, commit):
            found = api.parse_safetensors_file_metadata(name, file, revision=commit, timeout=_PATIENCE)
            return file, {tensor: _checked(tensor, one.dtype, one.shape) for tensor, one in found.tensors.items()}

    with ThreadPoolExecutor(_TOGETHER) as threads:
        return dict(threads.map(read, files))


def _checked(tensor: str, dtype: object, shape: Sequence[object]) -> tuple[str, tuple[int, ...]]:
    """What a header claims of a tensor, as its kinds should be: nobody has compared it with a file."""
    axes = tuple(axis for axis in shape if type(axis) is int and axis >= 0)
    if not isinstance(dtype, str) or len(axes) != len(shape):
        raise ValueError(f"{tensor} is {dtype!r} of the shape {shape!r}")
    return dtype, axes


def unfit(name: str, sizes: Mapping[str, int]) -> UserError:
    """Why a repository is no model that can be loaded from the hub. sizes: its files; none where that is not known."""
    for ending, advice in (
        (".gguf", "download one of them (hf download) and name the file"),
        (".bin", _PICKLES),
        (".pt", _PICKLES),
        (".safetensors", "config.json and model.safetensors, or its index, must lie at the root; name another model"),
    ):
        found = sorted(file for file in sizes if file.endswith(ending))
        if found:
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            return UserError(f"{name}: the hub repository holds {', '.join(found[:_SHOWN])}{more}; {advice}")
    return UserError(f"{name}: the hub repository holds no whole model (config.json and weights at its root)")


@contextmanager
def hub_refusals(name: str, revision: str | None, tried: str = _TRIED) -> Iterator[None]:
    """Turn what the hub, or its library, says of a repository into one line. tried: what the name was not."""
    wanted = f" at revision {revision}" if revision else ""
    try:
        yield
    except HFValidationError as error:
        raise UserError(
            f"{shortened(name)}: neither a folder here nor a possible name on the hub (owner/model)"
        ) from error
    except LocalEntryNotFoundError as error:
        raise UserError(f"{name}: {tried}not whole in the cache{wanted}, and the hub cannot be reached") from error
    except GatedRepoError as error:
        raise UserError(
            f"{name} is gated: accept its terms at {constants.ENDPOINT}/{name} and log in (hf auth login, or HF_TOKEN)"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{name}: {tried}{'and ' if tried else ''}the hub has none of that name, or a private "
            "one: check the name, or log in (hf auth login, or HF_TOKEN)"
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(f"{name} has no revision {revision!r} on the hub; name a branch, tag or commit") from error
    except HfHubHTTPError as error:
        first = next(filter(None, map(str.strip, str(error).splitlines())), "no reason given")
        login = "; log in with a token that may (hf auth login, or HF_TOKEN)" if _barred(error) else ""
        raise UserError(f"{name}: the hub refused it{wanted or ' at revision main'}: {first}{login}") from error


def _barred(error: HfHubHTTPError) -> bool:
    return error.response is not None and error.response.status_code in (401, 403)
