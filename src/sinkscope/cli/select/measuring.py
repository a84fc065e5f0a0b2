"""The table that a controller knows: measured on validation pictures, or read from a file that was kept."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sinkscope.cli.grid_progress import grid_progress
from sinkscope.cli.options import numbers, option_name
from sinkscope.cli.select.opening import DataOptions, read_channel
from sinkscope.errors import UserError, refusing
from sinkscope.files import read_json
from sinkscope.report.outputs import make_folder, write_whole
from sinkscope.selection.channels import CHANNELS, Channel
from sinkscope.selection.control import Fixed, OperatingTable
from sinkscope.selection.control.table import Floats
from sinkscope.selection.grid import BATCH, PICTURES, Measure, measure_on, operating_table
from sinkscope.selection.grid.cells import EXACT
from sinkscope.selection.grid.sending import symbols_of
from sinkscope.selection.saved import Trained

Axes = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]
"""Shares, rates and SNRs"""
ALPHAS, RATES, SNRS, CHANNEL, REPEATS = "0.1,0.3,0.5,1", "0.05,0.1,0.25", "-10,0,10,20", "awgn", 5


@dataclass(frozen=True, kw_only=True)
class TableOptions(DataOptions):
    """How the table is measured, as options. None leaves what the help says."""

    alpha: Annotated[str | None, typer.Option(metavar="0.1,...", help=f"Shares that can be chosen: {ALPHAS}.")] = None
    rate: Annotated[str | None, typer.Option(metavar="0.1,...", help=f"Rates that can be chosen: {RATES}.")] = None
    snr: Annotated[str | None, typer.Option(metavar="0,...", help=f"Measured, in dB, also inf: {SNRS}.")] = None
    channel: Annotated[
        str | None, typer.Option(help=f"{', '.join(sorted(CHANNELS))}, as in erasure:loss=0.2; {CHANNEL}.")
    ] = None
    n: Annotated[int | None, typer.Option("--n", min=1, help=f"Validation pictures: the first {PICTURES}.")] = None
    draws: Annotated[int | None, typer.Option(min=1, help="Draws of the noise, averaged: 1.")] = None
    batch_size: Annotated[int | None, typer.Option(min=1, help=f"Pictures run together: {BATCH}.")] = None
    repeats: Annotated[
        int | None, typer.Option(min=0, help=f"Single pictures timed at each share, 0 times nothing: {REPEATS}.")
    ] = None

    @property
    def given(self) -> list[str]:
        """What was set, as written on the command line."""
        return [option_name(name) for name, value in vars(self).items() if value is not None]

    @property
    def axes(self) -> Axes:
        """Shares, rates and SNRs, ascending."""
        asked = {"--alpha": self.alpha or ALPHAS, "--rate": self.rate or RATES, "--snr": self.snr or SNRS}
        alphas, rates, snrs = (tuple(sorted(numbers(option, text))) for option, text in asked.items())
        return alphas, rates, snrs

    @property
    def made_channel(self) -> Channel:
        """The channel. Raises `UserError` for an unknown one."""
        return read_channel(self.channel or CHANNEL)

    def check(self, *, timed: bool) -> None:
        """Raise `UserError` for what no table can have, whatever the model. timed: whether latencies are needed."""
        alphas, rates, _ = self.axes
        _without_accuracy(self.axes, np.ones((len(alphas), len(rates))))
        _ = self.made_channel
        if timed and self.repeats == 0:
            raise UserError("a latency limit needs pictures that are timed: leave --repeats 0 out")

    def measure(self, trained: Trained, *, limit: float, seed: int, quiet: bool) -> tuple[OperatingTable, Measure]:
        """The table, and what it was measured on. Raises `UserError` before any work for a limit that can't be kept."""
        alphas, rates, snrs = self.axes
        pictures, batch_size = self.n or PICTURES, self.batch_size or BATCH
        validation = self.splits(trained).validation
        measure = measure_on(trained, validation, split="validation", n=pictures, batch_size=batch_size)
        if trained.model.mode == EXACT:  # only then is it known beforehand what is sent
            Fixed(self._planned(measure), limit)
        with grid_progress(quiet) as observer:
            table = operating_table(
                trained, validation, alphas, rates, snrs,
                channel=self.made_channel, n=pictures, draws=self.draws or 1, seed=seed, batch_size=batch_size,
                repeats=REPEATS if self.repeats is None else self.repeats, observer=observer,
            )  # fmt: skip
        return table, measure

    def _planned(self, measure: Measure) -> OperatingTable:
        """A table of rates alone."""
        alphas, rates, _ = self.axes
        model, whole = measure.trained.model, measure.data.images[0].numel()
        rho = np.array([[symbols_of(model, alpha, rate) / whole for rate in rates] for alpha in alphas])
        return _without_accuracy(self.axes, rho)


def _without_accuracy(axes: Axes, rho: Floats) -> OperatingTable:
    alphas, rates, snrs = axes
    nothing = np.zeros((len(alphas), len(rates), len(snrs)))
    return OperatingTable(alphas=alphas, rates=rates, snrs=snrs, accuracy=nothing, rho=rho, split="validation")


def read_table(file: Path) -> OperatingTable:
    """A table that `write_table` wrote. Raises `UserError` for what is none."""
    with refusing(f"{file} can't be read", "name a file of --save-table"):
        stored = read_json(file)
    if not isinstance(stored, dict):
        raise UserError(f"{file} holds no operating table: name a file of --save-table")
    try:
        return OperatingTable.from_dict(stored)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


def write_table(file: Path, table: OperatingTable) -> None:
    """As JSON. Raises `UserError` where the disk does not take it."""
    make_folder(file.parent)
    write_whole(file, [(json.dumps(table.to_dict(), indent=1) + "\n").encode()])
