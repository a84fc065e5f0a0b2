"""The kernel in tiles against the float64 oracle; `test_fused` runs this file, on a GPU where there is one and else in
Triton's interpreter, which has to be asked for before Triton is imported.

Axes are different primes; 67 queries are two tiles, 43 keys (131 in half precision) are two or more. The interpreter
takes as long for the last tile's rest as for a whole tile, so no case has a tile more than it needs.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from cuts import BATCH, KINDS, OUTPUTS, Fixed, never, oracle, random_attention, random_cut, stand_ins
from torch.utils._python_dispatch import TorchDispatchMode

from sinkscope.attention import GROUPS, Collect, label_queries, watch
from sinkscope.attention.cutting import attend, cutting
from sinkscope.attention.evicting import KeyIndex
from sinkscope.attention.fused import fused
from sinkscope.attention.given import Attention, Cut
from sinkscope.attention.groups import query_weights
from sinkscope.attention.kernels import two_pass
from sinkscope.attention.statistics import Collect as Kept
from sinkscope.attention.statistics import LayerAccumulator, LayerStatistics

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
QUERIES, KEYS, HEADS = 67, 43, 4

# Scores of up to about 60 are sums of float32 products, each off by half a unit of its last digit, and logarithms of
# sums carry as much: together about 1e-5 of a probability. Three products of TF32 in place of one of float32 (GPUs
# only) leave four times that. A mean over queries is no worse.
CLOSE = {"cpu": 1e-5, "cuda": 4e-5}[DEVICE]

# Numpy, which interprets, warns of the logarithm of a weight of 0 and of differences of infinities that are not used.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def on_device(attention: Attention, visible: torch.Tensor) -> tuple[Attention, torch.Tensor]:
    moved: dict[str, Any] = {
        name: value.to(DEVICE)
        for name, value in vars(attention).items()
        if isinstance(value, torch.Tensor)
    }  # fmt: skip
    return replace(attention, **moved), visible.to(DEVICE)


def some_attention(kind: str, dtype: torch.dtype) -> tuple[Attention, torch.Tensor]:
    """A call of 67 queries, or 23 for some masks, to be done in time."""
    keys = 131 if dtype.itemsize == 2 else KEYS
    queries = QUERIES if kind in ("none", "causal", "padding", "boolean") else 23
    return random_attention(kind, kv_heads=2, queries=queries, keys=keys, dtype=dtype)


def changed(attention: Attention, what: str) -> Attention:
    """The same call with changed scores; what: words of those changes."""
    dtype, more = attention.query.dtype, dict[str, Any]()
    shape = (attention.query.shape[2], attention.key.shape[2])
    if "cap" in what:
        more["softcap"] = 1.7  # of scores around 4, so that the cap is felt
    if "bias" in what:
        more["bias"] = (2 * torch.randn(1, HEADS, *shape, device=DEVICE)).to(dtype)
    if "sink" in what:
        more["learned_sink"] = (3 * torch.randn(HEADS, device=DEVICE)).to(dtype)
    return replace(attention, **more)


def sdpa(attention: Attention) -> torch.Tensor:
    bias, mask = attention.bias, attention.mask
    if bias is not None and mask is not None:
        mask = bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
    return torch.nn.functional.scaled_dot_product_attention(
        attention.query, attention.key, attention.value, bias if mask is None else mask,
        is_causal=attention.causal, scale=attention.scale, enable_gqa=True,
    ).transpose(1, 2)  # fmt: skip


def no_cut(attention: Attention) -> Cut:
    return Cut(keys=torch.zeros(BATCH, HEADS, attention.key.shape[2], dtype=torch.bool, device=DEVICE))


def close(found: torch.Tensor | None, wanted: torch.Tensor, tolerance: float = CLOSE) -> None:
    assert found is not None
    torch.testing.assert_close(found.double(), wanted, atol=tolerance, rtol=0)


def layer_in_tiles(
    attention: Attention, labels: torch.Tensor, groups: int, entropy: bool
) -> tuple[torch.Tensor, LayerStatistics]:
    accumulator = LayerAccumulator(attention, 0, Kept(entropy=entropy), query_weights(labels, groups)[0])
    beyond = attention.softcap is not None or attention.learned_sink is not None
    output = fused(attention, accumulator, never if beyond else lambda: sdpa(attention))
    return output, accumulator.finish()


CASES = [
    # What SDPA can do, whose logarithms of sums are taken where they are exact enough.
    *((kind, torch.float32, "", 1) for kind in KINDS),
    ("none", torch.bfloat16, "", 5), ("causal", torch.float16, "", 5), ("padding", torch.float32, "", 5),
    # What it can't: the output is the sweep's.
    ("none", torch.float32, "cap", 1), ("causal", torch.bfloat16, "sink", 5), ("boolean", torch.float16, "bias", 1),
    ("padding", torch.float32, "cap bias sink", 5), ("float padding", torch.float32, "bias sink", 1),
    ("boolean per head", torch.float32, "sink", 5),
    ("float", torch.float16, "cap bias", 5),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype", "change", "groups"), CASES)
def test_statistics_and_output_equal_the_oracle(kind: str, dtype: torch.dtype, change: str, groups: int) -> None:
    attention, visible = on_device(*some_attention(kind, dtype))
    attention = changed(attention, change)
    expected = oracle(attention, visible, no_cut(attention))
    labels = torch.randint(-1, groups, (BATCH, attention.query.shape[2]), device=DEVICE)
    entropy = bool(change) or groups > 1
    output, seen = layer_in_tiles(attention, labels, groups, entropy)
    weights = query_weights(labels, groups)[0].double()
    close(seen.by_group, torch.einsum("bhqk,bgq->bhgk", expected.plain, weights))
    assert output.dtype == dtype
    seeing = visible.any(-1)[:, 0]  # SDPA gives a mean where an added mask hides all
    found, wanted = output.double()[seeing], expected.output[seeing]
    torch.testing.assert_close(found, wanted, atol=OUTPUTS[dtype], rtol=OUTPUTS[dtype])
    row = expected.plain
    if "sink" in change:
        close(seen.no_key, torch.einsum("bhq,bgq->bhg", expected.no_key, weights))
        row = torch.cat([row, expected.no_key.unsqueeze(-1)], dim=-1)
    if "cap" not in change and "sink" not in change:
        assert torch.equal(output, sdpa(attention))
    if entropy:
        counted = (labels >= 0).unsqueeze(1).expand(-1, HEADS, -1)
        assert seen.entropy is not None and bool(seen.entropy[~counted].isnan().all())
        close(seen.entropy[counted], torch.special.entr(row).sum(-1)[counted], 10 * CLOSE)


@pytest.mark.parametrize(
    ("dtype", "dim", "value_dim"),
    [(torch.float32, 32, 32), (torch.bfloat16, 80, 48), (torch.float32, 256, 256), (torch.bfloat16, 256, 256)],
)
def test_heads_of_other_sizes(dtype: torch.dtype, dim: int, value_dim: int) -> None:
    plain, visible = random_attention("none", kv_heads=1, groups=HEADS, queries=17, keys=37, dtype=dtype)
    plain = replace(
        plain,
        query=torch.randn(BATCH, HEADS, 17, dim).to(dtype),
        key=torch.randn(BATCH, 1, 37, dim).to(dtype),
        value=torch.randn(BATCH, 37, 1, value_dim).to(dtype).transpose(1, 2),
    )
    attention, visible = on_device(plain, visible)
    expected = oracle(attention, visible, no_cut(attention))
    for change in ("", "sink"):
        attention = changed(attention, change)
        expected = oracle(attention, visible, no_cut(attention))
        output, seen = layer_in_tiles(attention, torch.zeros(BATCH, 17, dtype=torch.long, device=DEVICE), 1, False)
        close(seen.by_group[:, :, 0], expected.plain.mean(2))
        torch.testing.assert_close(output.double(), expected.output, atol=OUTPUTS[dtype], rtol=OUTPUTS[dtype])


@pytest.mark.parametrize(
    ("kind", "way"),
    [*((kind, "scores") for kind in KINDS if kind != "one row"), ("causal", "values"), ("padding", "values"),
     ("causal", "instead"), ("boolean", "instead")],
)  # fmt: skip
def test_a_cut_equals_the_additive_mask(kind: str, way: str) -> None:
    dtype = {"boolean": torch.bfloat16, "one row": torch.float16}.get(kind, torch.float32)
    attention, visible = on_device(*some_attention(kind, dtype))
    cut = random_cut(attention, some_queries=kind != "none", values=way != "scores")
    cut.keys[:, 0, :40] = True  # under a causal mask the first rows see nothing else, and keep it
    if way == "instead":
        rows, keys = (1, 1) if kind == "causal" else (BATCH, attention.key.shape[2])
        cut = replace(cut, instead=stand_ins(attention, rows=rows, keys=keys).to(DEVICE))
    cut = replace(cut, keys=cut.keys.to(DEVICE), queries=None if cut.queries is None else cut.queries.to(DEVICE))
    attention = changed(attention, "cap sink" if kind in ("boolean", "padding") else "")
    expected = oracle(attention, visible, cut)
    weights = torch.rand(BATCH, attention.query.shape[2], device=DEVICE)
    accumulator = LayerAccumulator(attention, 0, Kept(entropy=True), torch.ones(BATCH, 1, weights.shape[1]))
    cutter = Fixed(cut, weights)
    output = attend(attention, cutter, never, accumulator)
    torch.testing.assert_close(output.double(), expected.output, atol=OUTPUTS[dtype], rtol=OUTPUTS[dtype])
    close(cutter.removed, expected.removed)
    for found, maps in ((cutter.before, expected.plain), (cutter.received, expected.under)):
        close(found, torch.einsum("bq,bhqk->bhk", weights.double(), maps), 10 * CLOSE)  # sums, no means
    row = torch.cat([expected.under, expected.no_key.unsqueeze(-1)], dim=-1)
    close(accumulator.finish().entropy, torch.special.entr(row).sum(-1), 10 * CLOSE)


@pytest.mark.parametrize("gap", [20, 110, 200])
def test_beside_a_strong_sink_no_digits_are_lost(gap: float) -> None:
    """What is left of a row is 1e-9, or less than float32 can hold, and is spread as it should be."""
    attention, visible = on_device(*some_attention("none", torch.float32))
    query, key = attention.query / 4, attention.key / 4
    query[..., 0], key[..., 0] = 0, 0
    query[:, :, ::2, 0] = 10
    key[:, :, 4, 0] = gap / (10 * attention.scale)
    attention, lost = replace(attention, query=query, key=key), no_cut(attention).keys
    lost[:, :, 4] = True
    expected = oracle(attention, visible, Cut(keys=lost))
    cutter = Fixed(Cut(keys=lost), torch.eye(QUERIES, device=DEVICE)[[0, 64]])
    attend(attention, cutter, never, None)
    assert expected.plain[:, :, 0, 4].amin() > 1 - 1e-6
    wanted = torch.stack([expected.under[0, :, 0], expected.under[1, :, 64]])
    assert cutter.received is not None
    # Relatively: differences of scores of some tens are off by about 1e-5.
    torch.testing.assert_close(cutter.received.double(), wanted, rtol=10 * CLOSE, atol=0)


def test_keys_that_a_cache_dropped_are_not_there() -> None:
    attention, visible = on_device(*random_attention("none", kv_heads=2, queries=QUERIES, keys=17, dtype=torch.float32))
    columns = torch.rand(BATCH, 2, KEYS).argsort(-1)[..., :17].sort(-1).values.to(DEVICE)
    attention = replace(attention, index=KeyIndex(columns=columns, width=KEYS))
    expected = oracle(attention, visible, no_cut(attention)).plain.mean(2)
    _, seen = layer_in_tiles(attention, torch.zeros(BATCH, QUERIES, dtype=torch.long, device=DEVICE), 1, False)
    for head in range(HEADS):
        at = columns[:, head // 2]
        close(seen.by_group[:, head, 0].gather(-1, at), expected[:, head])
        assert seen.by_group[:, head, 0].isnan().sum() == BATCH * (KEYS - 17)


def llama() -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(
        hidden_size=24, intermediate_size=31, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=101, initializer_range=0.3,
    )  # fmt: skip
    with torch.device(DEVICE):
        return transformers.LlamaForCausalLM(config)


class Within:
    """A cutter of single keys of every head."""

    needs_received = True

    def weights(self, attention: Attention) -> torch.Tensor:
        return torch.ones(attention.query.shape[0], attention.query.shape[2], device=DEVICE)

    def cut(self, _: Attention, received: Callable[[], torch.Tensor]) -> Cut:
        return Cut(keys=received() >= received().amax(-1, keepdim=True))

    def on_layer_end(self, received: torch.Tensor | None, removed: torch.Tensor | None) -> None: ...


@pytest.mark.parametrize("cut", [False, True], ids=["watched", "cut"])
def test_a_network_is_as_with_two_passes(cut: bool) -> None:
    """Padding, groups, norms, entropy and a full map, which goes the other way; over whole networks, gradients on."""
    network, tokens = llama(), torch.randint(3, 101, (2, 29), device=DEVICE)
    mask = torch.ones_like(tokens)
    mask[1, :7] = 0
    labels = torch.randint(0, len(GROUPS), (2, 29), device=DEVICE).masked_fill(mask == 0, -1)
    collect, found = Collect(groups=True, norms=True, entropy=True, map_layers=(1,)), []
    for kernel in ("fused", "two-pass"):
        with (
            watch(network, collect, kernel=kernel) as watched,
            label_queries(labels),
            cutting(Within() if cut else None),
        ):
            logits = network(tokens, attention_mask=mask).logits
        found.append((logits[mask.bool()], watched.last))
    (logits, tiled), (plain, rows) = found
    torch.testing.assert_close(logits, plain, atol=1e-4, rtol=1e-4)
    for name in ("received", "by_group", "key_norm", "entropy"):
        torch.testing.assert_close(getattr(tiled, name), getattr(rows, name), atol=2 * CLOSE, rtol=1e-5, equal_nan=True)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes of a tensor that is made inside the block."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.most = max(self.most, made.nbytes)
        return made


def test_nothing_grows_with_the_square_and_two_runs_are_equal() -> None:
    keys = 53  # so many that a byte a score is more than the states
    attention, _ = on_device(*random_attention("none", kv_heads=2, queries=QUERIES, keys=keys, dtype=torch.float32))
    attention, cut = changed(attention, "sink"), random_cut(attention)
    cut = replace(cut, keys=cut.keys.to(DEVICE), queries=None if cut.queries is None else cut.queries.to(DEVICE))
    runs = []
    for _ in range(2):
        cutter = Fixed(cut, torch.ones(BATCH, QUERIES, device=DEVICE))
        with Largest() as largest:  # type: ignore[no-untyped-call]
            output = attend(attention, cutter, never, None)
        assert cutter.received is not None and cutter.removed is not None
        runs.append((output, cutter.received, cutter.removed))
        assert largest.most < BATCH * HEADS * QUERIES * keys  # not even a byte a score
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))


@pytest.mark.parametrize("what", ["float64", "a score function", "large heads"])
def test_what_tiles_cannot_do_goes_the_other_way(what: str) -> None:
    dtype = torch.float64 if what == "float64" else torch.float32
    attention, _ = on_device(*some_attention("none", dtype))
    if what == "a score function":
        attention = replace(attention, changed=lambda scores, _: scores / 2)
    if what == "large heads":
        attention = replace(attention, query=attention.query.repeat(1, 1, 1, 24), key=attention.key.repeat(1, 1, 1, 24))
    found = []
    for kernel in (fused, two_pass):
        accumulator = LayerAccumulator(attention, 0, Kept(), torch.ones(BATCH, 1, QUERIES, device=DEVICE))
        kernel(attention, accumulator, lambda: attention.value)
        found.append(accumulator.finish().by_group)
    assert torch.equal(*found)
