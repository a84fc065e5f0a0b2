"""What the room is asked badly, and what the one line of the answer must name: the setting, and what would do."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from control_tables import plausible_table, random_table
from tiny_vits import GATES, SPLIT, WIDTH, pictures, selective
from torch import nn
from transformers import ViTConfig, ViTModel

from sinkscope.errors import UserError
from sinkscope.selection import SELECTORS, Link, PlainBackbone, SelectiveViT, find_channel, relaxed_pass, wrap
from sinkscope.selection.agreement import agreement
from sinkscope.selection.budgets import alphas, check_alpha
from sinkscope.selection.control import (
    Constant,
    DriftPlusPenalty,
    Fixed,
    OperatingTable,
    Oracle,
    choose_v,
    find_controller,
    find_process,
    simulate,
)
from sinkscope.selection.costs import flops, latency
from sinkscope.selection.digital import DIGITAL, find_digital
from sinkscope.selection.link import TokenCodec

NAN, INF = math.nan, math.inf
BYTES = np.zeros((2, 1, 8, 8), np.uint8)


def run(count: int = 3, alpha: Any = 0.5, network: str = "plain", **options: Any) -> object:
    model = selective(network)
    return model(pictures(model.backbone, count), alpha, **options)


def relaxed(alpha: torch.Tensor, mode: str = "exact") -> object:
    model = selective("plain")
    return relaxed_pass(model, pictures(model.backbone, 2), alpha, mode=mode)


def link(snr: Any = 10.0, rate: float = 0.5) -> Link:
    return Link(find_channel("awgn"), rate, snr)


def built(**options: Any) -> SelectiveViT:
    return SelectiveViT(selective("plain").backbone, **{"gates": GATES, "split": SPLIT, **options})


def penalty(**options: float) -> DriftPlusPenalty:
    return DriftPlusPenalty(plausible_table(), **{"limit": 0.1, "V": 1.0, **options})


def chosen_v(values: list[float], **options: Any) -> float:
    return choose_v(plausible_table(), 0.012, values, np.zeros(100), **{"last": 50, **options})


def table(**changed: Any) -> OperatingTable:
    drawn = random_table(6)
    return OperatingTable(**{name: getattr(drawn, name) for name in OperatingTable.__dataclass_fields__} | changed)


def stored_table(*lacking: str) -> OperatingTable:
    stored = random_table(7).to_dict()
    return OperatingTable.from_dict({name: value for name, value in stored.items() if name not in lacking})


def tokens_first() -> PlainBackbone:
    layer = nn.TransformerEncoderLayer(8, 2, 8)
    return PlainBackbone(
        layer, embed=nn.Identity(), blocks=[layer], classify=lambda tokens, _: tokens, grid=(1, 1),
        image_shape=(1, 2, 2), classes=2,
    )  # fmt: skip


def timed(**options: Any) -> float:
    model = selective("vit")
    return latency(model, pictures(model.backbone, 1), **{"alpha": 0.5, **options})


def compared(network: str, alpha: float) -> object:
    model = selective(network)
    return list(agreement(model, pictures(model.backbone, 2), alpha))


SMALL_VIT = ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=8)
SHARE, ONE_EACH = "alpha must lie in (0, 1], the share of patches", "alpha must be one number or one for each of the 3"
Row = tuple[Callable[[], object], tuple[str, ...]]
TABLE: list[Row] = [
    # shares
    *((lambda one=one: check_alpha(one), (SHARE,)) for one in (0, -0.1, 1.2, NAN, INF, [0.5, 0.0])),
    *((lambda one=one: alphas(one, 2), (SHARE,)) for one in (0.0, torch.tensor([1.0, 1.0001]))),
    *((lambda one=one: alphas(one, 3), (ONE_EACH,)) for one in ([0.5, 0.5], [], torch.full((3, 1), 0.5))),
    *((lambda one=one: run(2, one), (SHARE,)) for one in (0.0, 1.2, NAN, [0.5, 1.2])),
    (lambda: run(3, [0.5, 0.5]), (ONE_EACH, "(2,)")),
    (lambda: relaxed(torch.tensor([0.5, 1.2])), (SHARE,)),
    (lambda: relaxed(torch.full((3,), 0.5)), ("alpha must be one number", "each of the 2 images", "(3,)")),
    (lambda: timed(alpha=1.5), (SHARE,)),
    (lambda: compared("vit", 0.0), (SHARE,)),
    # names
    (lambda: relaxed(torch.full((2,), 0.5), "hard"), ("mode 'hard'", "exact, soft, up-to")),
    (lambda: built(mode="hard"), ("mode 'hard'", "exact, soft, up-to")),
    (lambda: run(mode="hard"), ("mode 'hard'", "exact, soft, up-to")),
    (lambda: run(selector="best"), ("selector 'best'", "cls-attention, ", "gates, high-key-norm, ", "random")),
    (lambda: find_channel("tin can"), ("channel 'tin can'", "awgn, erasure, rayleigh, rayleigh-blind")),
    (lambda: find_digital("bpg"), ("'bpg'", "jpeg, resized")),
    (lambda: find_controller("pid", plausible_table(), 0.1), ("'pid'", "drift-plus-penalty, fixed, oracle")),
    (lambda: find_process("rician"), ("'rician'", "constant, fading, gaussian")),
    # networks and pictures
    (lambda: wrap(ViTModel(SMALL_VIT)), ("a ViTModel", "ViTForImageClassification", "PlainBackbone")),
    (lambda: wrap(nn.Linear(2, 2)), ("a Linear", "PlainBackbone")),
    (tokens_first, ("(batch, token, width)", "batch_first=True")),
    (lambda: run(0), ("at least one image",)),
    (lambda: selective("vit")(torch.zeros(2, 3, 20, 28, dtype=torch.uint8), 0.5), ("torch.uint8", "scale them")),
    (lambda: flops(selective("vit"), 0.5, images=torch.zeros(1, 3, 8, 8)), ("3 x 20 x 28, got 3 x 8 x 8", "resize")),
    *((lambda one=one: built(split=one), ("split must lie between 1 and 4", str(one))) for one in (0, -1, 5, 99)),
    *(
        (lambda one=one: built(gates=one), ("gates must name blocks from 1 to 3", "ascending", f"got {one}"))
        for one in ([], [0], [SPLIT], [2, 2], [2, 1], [-1, 2], [1, 99])
    ),
    # choosing
    *(
        (lambda one=one: run(2, network="vit", mode="soft", selector=one), ("soft mode", "'gates'"))
        for one in sorted(set(SELECTORS) - {"gates"})
    ),
    *(
        (lambda one=one: run(selector=one), ("attention", "'gates' or 'random'", "PlainBackbone"))
        for one, kind in SELECTORS.items()
        if kind.needs_attention
    ),
    (lambda: compared("plain", 0.5), ("attention", "can only be seen in transformers'")),
    (lambda: run(selector="random", numbers=[1, 2]), ("numbers must be one for each of the 3 images, got 2",)),
    (lambda: timed(repeats=0), ("repeats must be at least 1",)),
    # links
    *((lambda one=one: link(rate=one), ("rate must lie in (0, 1]", f"{one:g}")) for one in (0, 1.5, -0.1, NAN, INF)),
    (lambda: TokenCodec(WIDTH).symbols(1.5), ("rate must lie in (0, 1]",)),
    (lambda: TokenCodec(WIDTH).encode(torch.zeros(1, 1, WIDTH), 0), ("rate must lie in (0, 1]",)),
    *((lambda one=one: link(one), ("snr must be", "inf for no")) for one in (NAN, -INF, torch.tensor([1.0, NAN]))),
    *(
        (lambda one=one: run(5, link=link(torch.zeros(one))), ("snr must be one number or one for each", "got ("))
        for one in ((2,), (1,), (5, 1))
    ),
    *((lambda one=one: find_channel("erasure", loss=one), ("loss must lie in [0, 1)",)) for one in (1.0, -0.1, NAN)),
    # digital baselines
    *(
        (lambda name=name, given=given: find_digital(name)(*given), words)
        for name in sorted(DIGITAL)
        for given, words in [
            ((np.zeros((2, 1, 8, 8)), 100, 0.0), ("images must be uint8", "float64")),
            ((BYTES[0], 100, 0.0), ("images must be uint8", "(1, 8, 8)")),
            ((BYTES[:0], 100, 0.0), ("images must be uint8",)),
            ((BYTES, 0, 0.0), ("symbols must be at least 1",)),
            ((BYTES, 100, NAN), ("snr must be a number", "inf")),
            ((BYTES, 100, -INF), ("snr must be a number", "inf")),
            ((BYTES, [1, 2, 3], 0.0), ("symbols must be one number", "each of the 2 pictures, got (3,)")),
        ]
    ),
    (lambda: find_digital("jpeg")(BYTES.reshape(1, 2, 8, 8), 100, 0.0), ("1 or 3 channels", "got 2")),
    # controllers, processes, simulations
    *((lambda one=one: penalty(**{one[0]: one[1]}), (f"{one[0]} must be",)) for one in [
        ("limit", 0.0), ("limit", NAN), ("mu", -1.0), ("latency_limit", INF), ("V", -1.0), ("V", INF)]),
    (lambda: penalty(limit=0.001), ("0.001 can't be kept", "sends 0.0025", "raise the limit")),
    (lambda: Oracle(plausible_table(), 0.1, latency_limit=0.001), ("0.001 s", "the fastest takes 0.0024 s")),
    (lambda: Oracle(random_table(1), 0.1, latency_limit=0.001), ("needs a table with latencies",)),
    *((lambda one=one: chosen_v([1.0], last=one), ("last must lie",)) for one in (0, 101)),
    (lambda: chosen_v([1.0], slack=-0.1), ("slack must not be negative",)),
    (lambda: chosen_v([]), ("none of V = nothing", "smaller ones")),
    *((lambda one=one: find_process("constant", snr=one), ("snr must be", "inf")) for one in (NAN, -INF)),
    (lambda: find_process("gaussian", mean=INF, std=1.0), ("mean must be",)),
    (lambda: find_process("gaussian", mean=0.0, std=-1.0), ("std must be",)),
    (lambda: find_process("fading", mean=NAN), ("mean must be",)),
    (lambda: find_process("fading", mean=0.0, correlation=1.0), ("correlation must lie in [0, 1)",)),
    (lambda: Constant(0.0).draw(0, seed=0), ("slots must be at least 1",)),
    (lambda: simulate(Fixed(plausible_table(), 0.1), []), ("snrs must be one number", "inf")),
    # operating tables
    *((lambda one=one: table(split=one), ("validation split", repr(one))) for one in ("test", " Test[:500]", " ")),
    (lambda: table(alphas=(0.0, 0.5, 1.0)), (SHARE,)),
    (lambda: table(alphas=(0.5, 0.1, 1.0)), ("alphas", "ascending")),
    (lambda: table(alphas=("much", 0.1, 1.0)), ("alphas", "numbers")),
    (lambda: table(rates=(0.5, 1.5)), ("rate must lie in (0, 1]",)),
    (lambda: table(rates=()), ("rates", "one or more")),
    (lambda: table(snrs=(-INF, 0.0, 1.0, 2.0, 3.0)), ("snrs", "begin with a finite")),
    (lambda: table(snrs=(0.0, 1.0, NAN, 2.0, 3.0)), ("snrs", "ascending")),
    (lambda: table(accuracy=np.full((3, 2, 5), 85.0)), ("accuracy", "divide percentages by 100")),
    (lambda: table(accuracy=np.full((3, 2, 5), NAN)), ("accuracy", "[0, 1]")),
    (lambda: table(accuracy=np.full((2, 3, 5), 0.5)), ("accuracy", "shape (3, 2, 5); got (2, 3, 5)")),
    (lambda: table(rho=np.zeros((3, 2))), ("rho", "positive")),
    (lambda: table(rho=[[0.1, 0.1], [0.1], [0.1, 0.1]]), ("rho",)),
    (lambda: table(latency=np.array([0.1, 0.0, 0.1])), ("latency", "positive")),
    (lambda: table(latency=np.array([0.1, 0.1])), ("latency", "shape")),
    (lambda: stored_table("rho", "snrs"), ("missing: snrs, rho",)),
    *(
        (lambda one=one: random_table(8).accuracy_at(one), ("snrs must be", "inf"))
        for one in ([], [NAN], [0.0, -INF], 3.0, [[1.0]])
    ),
]  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[1][0])
def test_what_is_asked_badly_is_answered_in_one_line(row: Row) -> None:
    call, words = row
    with pytest.raises(UserError) as refusal:
        call()
    said = str(refusal.value)
    assert "\n" not in said and all(word in said for word in words), said
