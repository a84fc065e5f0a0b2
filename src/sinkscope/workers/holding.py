"""What runs in a worker: it opens what a job's key names, once, and does the jobs of that key."""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sinkscope.discovery import load_plugin
from sinkscope.errors import Caution, UserError, refusing
from sinkscope.versions import deciding, versions_now
from sinkscope.workers.jobs import Job

Do = Callable[[dict[str, Any]], Any]
"""A job's settings to its result, both JSON."""


class Holder:
    """One worker. Whatever a job raises comes back as words; memory that ran out is its death, for what is left of the
    memory may be in pieces."""

    def __init__(
        self, folder: str, threads: int, paths: Sequence[str], plugins: Sequence[str], versions: Mapping[str, str]
    ) -> None:
        """folder: the working directory. threads: of torch, so that workers of one machine do not crowd its CPUs.
        paths, versions: from which the asking process imports, and of its packages."""
        self._threads, self._holds, self._versions = threads, "", versions
        self._do: Do | None = None
        self._folder, self._paths, self._plugins = folder, paths, plugins

    def start(self) -> dict[str, Any]:
        """Make the process like the one that asks; says which process it is, or why it can't be."""
        try:
            with refusing(f"a worker on {socket.gethostname()} can't start"):
                os.chdir(self._folder)
                sys.path += [one for one in self._paths if one not in sys.path]
                if deciding(versions_now()) != deciding(self._versions):
                    raise UserError(
                        f"it has {versions_now()}, here are {dict(self._versions)}, which make other numbers"
                    )
                import torch

                torch.set_num_threads(self._threads)
                for file in self._plugins:
                    load_plugin(Path(file))
        except UserError as error:
            return {"reason": str(error)}
        return {"result": {"pid": os.getpid(), "host": socket.gethostname()}}

    def do(self, job: Job) -> dict[str, Any]:
        """`result`, `seconds` and `cautions`, or the `reason` that there is none; `died` where this worker is of no
        more use."""
        try:
            with refusing(f"{job.name or 'a job'} failed"), warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", Caution)
                if job.holding != self._holds:
                    self._open(job)
                start = time.perf_counter()
                assert self._do is not None
                result = self._do(dict(job.settings))
                cautions = [(one.category, str(one.message)) for one in said if issubclass(one.category, Caution)]
                return {"result": result, "seconds": time.perf_counter() - start, "cautions": cautions}
        except UserError as error:
            return {"reason": str(error)}
        except (MemoryError, RuntimeError) as error:  # the second is one of memory too, `refusing` lets no other by
            return {"reason": f"memory ran out ({type(error).__name__})", "died": True}

    def _open(self, job: Job) -> None:
        """Let go of what is held, and open another."""
        self._holds, self._do = "", None
        gc.collect()
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_available():
            sys.modules["torch"].cuda.empty_cache()
        self._do = open_by_path(job.opener, dict(job.key))
        self._holds = job.holding


def open_by_path(opener: str, key: dict[str, Any]) -> Do:
    """What the function "package.module:name" gives for a key."""
    module, _, name = opener.partition(":")
    do: Do = getattr(import_module(module), name)(key)
    return do
