"""What the controller must know beforehand: the accuracy of every share, rate and SNR, on validation pictures.

    table = operating_table(trained, splits.validation, alphas=(0.1, 0.5), rates=(0.05, 0.25), snrs=(-10.0, 0.0, 10.0))

Costs one pass over the pictures a cell and draw, and `repeats` single pictures a share.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from sinkscope.experiments.patches import FORM, with_noise_batch
from sinkscope.experiments.pictures import BATCH, GATES, PICTURES, PatchCondition, measure_on
from sinkscope.experiments.points import points
from sinkscope.grids.run import Keeping, Observer, Work, run_grid
from sinkscope.selection.channels import Channel, find_channel
from sinkscope.selection.control import OperatingTable
from sinkscope.selection.control.table import Floats
from sinkscope.selection.costs import latency
from sinkscope.selection.data import ImageSet
from sinkscope.selection.link import Link
from sinkscope.selection.saved import Trained


def operating_table(
    trained: Trained,
    validation: ImageSet,
    alphas: Sequence[float],
    rates: Sequence[float],
    snrs: Sequence[float],
    *,
    channel: Channel | str = "awgn",
    n: int = PICTURES,
    draws: int = 1,
    seed: int = 0,
    batch_size: int = BATCH,
    repeats: int = 0,
    keeping: Keeping | None = None,
    observer: Observer | None = None,
) -> OperatingTable:
    """Measure a model's gates, in the mode that it was trained in, on the first n pictures of a validation part.

    draws: of the noise, averaged. repeats: of single pictures that are timed at each share, both sides together over
    the first rate; 0 leaves the latency out. keeping: of the cells. Raises `UserError` for a test part, for axes that
    do not ascend, and for what a comparison refuses.
    """
    measure = measure_on(trained, validation, split="validation", n=n, batch_size=batch_size)
    found = find_channel(channel) if isinstance(channel, str) else channel
    mode = trained.model.mode
    every = [
        PatchCondition(way=GATES, alpha=alpha, mode=mode, channel=found, rate=rate, snr=snr, seed=seed + draw)
        for alpha, rate, snr in product(alphas, rates, snrs)
        for draw in range(draws)
    ]
    conditions = [with_noise_batch(one, batch_size) for one in every]
    # The axes are looked at before the work, by a table without numbers in it.
    shape = (len(alphas), len(rates), len(snrs))
    blank = OperatingTable(
        alphas=tuple(alphas), rates=tuple(rates), snrs=tuple(snrs),
        accuracy=np.zeros(shape), rho=np.ones(shape[:2]), split=validation.name,
    )  # fmt: skip
    cells = run_grid([Work(measure.model, measure, conditions)], FORM, keeping, observer)
    at = {(one.condition.alpha, one.condition.rate, one.condition.snr): one for one in points(cells)}
    measured = [at[place] for place in product(blank.alphas, blank.rates, blank.snrs)]
    return OperatingTable(
        alphas=blank.alphas,
        rates=blank.rates,
        snrs=blank.snrs,
        accuracy=np.array([point.outcome.score for point in measured]).reshape(shape),
        rho=np.array([point.stat("rho") for point in measured]).reshape(shape).mean(-1),
        latency=_latencies(measure.data, trained, alphas, Link(found, rates[0], snrs[-1]), repeats),
        split=blank.split,
    )


def _latencies(data: ImageSet, trained: Trained, alphas: Sequence[float], link: Link, repeats: int) -> Floats | None:
    """(alpha,) seconds of one picture."""
    if not repeats:
        return None
    image = data.pixels([0]).to(trained.model.budget.all.device)
    return np.array([latency(trained.model, image, alpha, repeats, link=link) for alpha in alphas])
