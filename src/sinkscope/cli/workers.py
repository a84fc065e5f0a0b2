"""Options that say where a grid's cells are run: here, or by Ray's workers on this machine or many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from sinkscope.cli.groups import OptionGroup, given_options
from sinkscope.cli.options import positive
from sinkscope.errors import UserError
from sinkscope.workers import Asked, Workers, open_workers


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(OptionGroup):
    """Who does the work."""

    panel: ClassVar[str] = "Where it is run"

    on: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE", help="Ray's workers: ray (this machine), auto (a running cluster), ray://HOST:PORT."
        ),
    ] = None
    workers: Annotated[int | None, positive("Workers at once; one a GPU, or a CPU, if left out.")] = None
    gpus_per_worker: Annotated[
        float | None, typer.Option(min=0, help="GPUs of a worker, 0.5 for two on one; 1 where there are any.")
    ] = None

    def __post_init__(self) -> None:
        if self.on is None and (given := given_options(self)):
            raise UserError(f"{given[0]} is of Ray's workers: say where they are (--on ray), or leave it out")
        self.asked()  # before models are loaded for nothing

    def asked(self) -> Asked | None:
        """As workers are asked for; None where nobody does. Raises `UserError` for what is none."""
        if self.on is None:
            return None
        return Asked(on=self.on, workers=self.workers, gpus_per_worker=self.gpus_per_worker)

    @contextmanager
    def opened(self) -> Iterator[Workers | None]:
        """The workers; None where nobody asked for them."""
        asked = self.asked()
        with nullcontext() if asked is None else open_workers(asked) as workers:
            yield workers
