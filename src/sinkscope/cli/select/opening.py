"""What the commands of `sinkscope select` take: model, pictures, channel, a figure's file, and a controller's table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from sinkscope.cli.choices import CHANNELS, FORMATS, PICTURES, PICTURES_TOGETHER, SHIPPED, check_specs
from sinkscope.cli.grids import grid_progress
from sinkscope.cli.groups import OptionGroup, option_name
from sinkscope.cli.options import MOST, Names, finite, limit_option, many, numbers, positive, seed_of, several
from sinkscope.errors import UserError, refusing
from sinkscope.files import make_folder, read_json, require_place, write_whole

if TYPE_CHECKING:
    from sinkscope.experiments.pictures import PictureAccuracy
    from sinkscope.selection.channels import Channel
    from sinkscope.selection.control import OperatingTable
    from sinkscope.selection.control.table import Floats
    from sinkscope.selection.data import Splits
    from sinkscope.selection.saved import Trained


OneModel = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]", help=f"A folder of sinkscope select train, or {' or '.join(SHIPPED)}, which ship."
    ),
]
Part = Annotated[Literal["test", "validation"], typer.Option(help="Which part of the pictures.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")]


@dataclass(frozen=True, kw_only=True)
class DataOptions(OptionGroup):
    """Where pictures come from."""

    panel: ClassVar[str] = "Which pictures"

    data: Annotated[
        str | None, typer.Option(help="fashion-mnist, digits, folder:PATH or hub:NAME; what the model was trained on.")
    ] = None
    image_size: Annotated[
        int | None, positive("Scale and crop pictures to this side; for its own data the model's.")
    ] = None
    data_seed: Annotated[int | None, seed_of("Of the parts, where the data have none; as it was in training: 0.")] = (
        None
    )

    def splits(self, trained: Trained) -> Splits:
        """All parts, of the size that the model was trained at where these are its own data."""
        from sinkscope.selection.data import load_images

        source = self.data or trained.source
        scale = trained.preprocessing_of(source)
        return load_images(source, size=self.image_size, preprocessing=scale, seed=self.data_seed or 0)


def notes_on_default(*named: object) -> list[str]:
    """What to say where neither a model nor data were named; nothing otherwise."""
    from sinkscope.selection.data import about_default

    return [] if any(named) else [about_default()]


def open_selective(name: str | None, device: str | None) -> Trained:
    """The model of this name, or the one that ships; on a device."""
    from sinkscope.families.model import parse_device
    from sinkscope.selection.data import default_source
    from sinkscope.selection.saved import load_selective

    place = parse_device(device)
    trained = load_selective(name or default_source())
    trained.model.to(place)
    return trained


def channel_from(spec: str) -> Channel:
    """A channel with its parameters: "erasure:loss=0.2". Raises `UserError` for what is none."""
    check_specs("channel", [spec], CHANNELS)
    from sinkscope.selection.channels import read_channel

    return read_channel(spec)


def check_figure(out: Path | None, *, overwrite: bool) -> None:
    """Raise `UserError` where a figure can't be written."""
    if out is None:
        return
    if out.suffix.removeprefix(".") not in FORMATS:
        raise UserError(f"{out.name}: figures are written as {', '.join(FORMATS)}; choose one of these endings")
    require_place(out, "the figure", overwrite=overwrite)


Axes = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]
"""Shares, rates and SNRs"""
ALPHAS, RATES, SNRS, CHANNEL, REPEATS = "0.1,0.3,0.5,1", "0.05,0.1,0.25", "-10,0,10,20", "awgn", 5


@dataclass(frozen=True, kw_only=True)
class TableOptions(DataOptions):
    """How the table is measured, as options. None leaves what the help says."""

    panel: ClassVar[str] = "How the table is measured"

    alpha: Annotated[Names, many("0.1,...", f"Shares that can be chosen: {ALPHAS}.")] = None
    rate: Annotated[Names, many("0.1,...", f"Rates that can be chosen: {RATES}.")] = None
    snr: Annotated[Names, many("0,...", f"Measured, in dB, also inf: {SNRS}.")] = None
    channel: Annotated[str | None, typer.Option(help=f"{', '.join(CHANNELS)}, as in erasure:loss=0.2; {CHANNEL}.")] = (
        None
    )
    limit: Annotated[int | None, limit_option(f"Validation pictures: the first {PICTURES}.")] = None
    draws: Annotated[int | None, positive("Draws of the noise, averaged: 1.")] = None
    batch_size: Annotated[int | None, positive(f"Pictures run together: {PICTURES_TOGETHER}.")] = None
    repeats: Annotated[
        int | None,
        typer.Option(min=0, max=MOST, help=f"Single pictures timed at each share, 0 times nothing: {REPEATS}."),
    ] = None

    @property
    def given(self) -> list[str]:
        """What was set, as written on the command line."""
        return [option_name(name) for name, value in vars(self).items() if value not in (None, [])]

    @property
    def axes(self) -> Axes:
        """Shares, rates and SNRs, ascending."""
        alphas, rates = numbers("--alpha", self.alpha or [ALPHAS]), numbers("--rate", self.rate or [RATES])
        snrs = several("--snr", self.snr or [SNRS], read_snr, "numbers and inf")
        return tuple(sorted(alphas)), tuple(sorted(rates)), tuple(sorted(snrs))

    @property
    def made_channel(self) -> Channel:
        """The channel. Raises `UserError` for an unknown one."""
        return channel_from(self.channel or CHANNEL)

    def check(self, *, timed: bool) -> None:
        """Raise `UserError` for what no table can have, whatever the model. timed: whether latencies are needed."""
        import numpy as np

        alphas, rates, _ = self.axes
        _without_accuracy(self.axes, np.ones((len(alphas), len(rates))))
        _ = self.made_channel
        if timed and self.repeats == 0:
            raise UserError("a latency limit needs pictures that are timed: leave --repeats 0 out")

    def measure(
        self, trained: Trained, *, limit: float, seed: int, quiet: bool
    ) -> tuple[OperatingTable, PictureAccuracy]:
        """The table, and what it was measured on. Raises `UserError` before any work for a limit that can't be kept."""
        from sinkscope.experiments.operating import operating_table
        from sinkscope.experiments.pictures import EXACT, measure_on
        from sinkscope.selection.control import Fixed

        alphas, rates, snrs = self.axes
        pictures, batch_size = self.limit or PICTURES, self.batch_size or PICTURES_TOGETHER
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

    def _planned(self, measure: PictureAccuracy) -> OperatingTable:
        """A table of rates alone."""
        import numpy as np

        from sinkscope.experiments.pictures import symbols_of

        alphas, rates, _ = self.axes
        model, whole = measure.trained.model, measure.data.images[0].numel()
        rho = np.array([[symbols_of(model, alpha, rate) / whole for rate in rates] for alpha in alphas])
        return _without_accuracy(self.axes, rho)


def read_snr(text: str) -> float:
    """Decibels, or inf for a channel without noise."""
    return inf if text == "inf" else finite(text)


def _without_accuracy(axes: Axes, rho: Floats) -> OperatingTable:
    import numpy as np

    from sinkscope.selection.control import OperatingTable

    alphas, rates, snrs = axes
    nothing = np.zeros((len(alphas), len(rates), len(snrs)))
    return OperatingTable(alphas=alphas, rates=rates, snrs=snrs, accuracy=nothing, rho=rho, split="validation")


def read_table(file: Path) -> OperatingTable:
    """A table that `write_table` wrote. Raises `UserError` for what is none."""
    from sinkscope.selection.control import OperatingTable

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
    write_whole(file, json.dumps(table.to_dict(), indent=1) + "\n")


def check_gates(mode: object, selectors: Sequence[str]) -> None:
    """Raise `UserError` for a mode, None where none was named, without the gates that alone have one."""
    if mode and "gates" not in selectors:
        raise UserError("--mode is of the gates, and --selector names others alone: add gates, or leave --mode out")
