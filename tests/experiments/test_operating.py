"""The controller's table against cells measured one by one, and from validation pictures only."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil, inf
from pathlib import Path

import numpy as np
import pytest
from picture_samples import picture_set, trained

from sinkscope.errors import UserError
from sinkscope.experiments.operating import operating_table
from sinkscope.experiments.patches import read_selections, with_noise_batch
from sinkscope.experiments.pictures import PatchCondition, measure_on
from sinkscope.grids import Keeping
from sinkscope.selection import find_channel
from sinkscope.selection.data import ImageSet

ALPHAS, RATES, SNRS = (0.1, 0.5, 1.0), (0.1, 0.6), (-10.0, 0.0, inf)
VALIDATION = "noise, validation (10% of train, seed 0)"


def validation(n: int) -> ImageSet:
    return replace(picture_set(n), name=VALIDATION)


def test_every_number_is_that_of_its_cell() -> None:
    one, data = trained(), validation(9)
    found = operating_table(one, data, ALPHAS, RATES, SNRS, n=7, seed=3, batch_size=4)
    assert (found.alphas, found.rates, found.snrs, found.split) == (ALPHAS, RATES, SNRS, VALIDATION)
    assert found.latency is None
    measure = measure_on(one, data, split="validation", n=7, batch_size=4)
    for place in product(range(3), range(2), range(3)):
        alpha, rate, snr = ALPHAS[place[0]], RATES[place[1]], SNRS[place[2]]
        condition = PatchCondition(way="gates", alpha=alpha, channel=find_channel("awgn"), rate=rate, snr=snr, seed=3)
        measured = measure.run(with_noise_batch(condition, 4), lambda _: None)
        assert found.accuracy[place] == measured.outcome.score
        assert found.rho[place[:2]] == pytest.approx((ceil(alpha * 35) + 1) * ceil(rate * 32) / (3 * 20 * 28))


def test_draws_are_averaged_and_cells_kept(tmp_path: Path) -> None:
    one, data = trained("up-to"), validation(6)
    given = {"channel": find_channel("erasure", loss=0.4), "draws": 2}
    found = operating_table(one, data, (0.3,), (0.5,), (0.0,), keeping=Keeping(out=tmp_path), **given)  # type: ignore[arg-type]
    rows = read_selections(tmp_path)
    assert [(row.condition.seed, row.condition.mode) for row in rows] == [(0, "up-to"), (1, "up-to")]
    assert found.accuracy.item() == pytest.approx(np.mean([row.outcome.score for row in rows]))
    assert found.rho.item() == pytest.approx(rows[0].stats["rho"]) and rows[0].stats["sent"] is not None
    keeping = Keeping(out=tmp_path, resume=True)
    again = operating_table(one, data, (0.3,), (0.5,), (0.0,), keeping=keeping, **given)  # type: ignore[arg-type]
    assert again.to_dict() == found.to_dict() and len(read_selections(tmp_path)) == 2


def test_single_pictures_are_timed_where_wanted() -> None:
    found = operating_table(trained(), validation(3), (0.1, 1.0), (0.5,), (0.0,), repeats=2)
    assert found.latency is not None and found.latency.shape == (2,) and (found.latency > 0).all()


@pytest.mark.parametrize("name", ["noise, test", "digits, test (20%, seed 0)", "noise, test, 4 of 9"])
def test_a_test_part_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="must be measured on a validation split"):
        operating_table(trained(), replace(picture_set(3), name=name), (0.5,), (0.5,), (0.0,))


def test_axes_are_looked_at_before_the_work(tmp_path: Path) -> None:
    for alphas, rates, snrs, said in (
        ((0.5, 0.1), (0.5,), (0.0,), "alphas of an operating table must be one or more numbers in ascending order"),
        ((0.5,), (1.5,), (0.0,), "rate must lie in"),
        ((0.5,), (0.5,), (inf,), "must begin with a finite number"),
    ):
        with pytest.raises(UserError, match=said):
            operating_table(trained(), validation(3), alphas, rates, snrs, keeping=Keeping(out=tmp_path / "cells"))
    assert not (tmp_path / "cells").exists()
