"""Traces of networks whose layers differ: in heads, in key heads, in windows, or in having attention at all.

The oracle is attention written out here, in float64, in the same stock network: one pass over the finished text,
without a cache, in which a query is denied what a cache forgot or dropped, or a mask took away.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, DynamicCache
from transformers.masking_utils import eager_mask

import sinkscope as ss
from sinkscope.compression import Compress
from sinkscope.errors import UserError
from sinkscope.sinks import First
from sinkscope.trace.layout import Maps
from sinkscope.trace.planning import Recording

WINDOW = 5
SLIDING = ["sliding_attention", "full_attention"] * 2
SIZES: dict[str, Any] = {
    "vocab_size": 101, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
WINDOWED: dict[str, Any] = {"head_dim": 8, "layer_types": SLIDING, "sliding_window": WINDOW}
PER_LAYER: dict[str, Any] = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 101}
SHARED: dict[str, Any] = {**WINDOWED, **PER_LAYER, "num_kv_shared_layers": 2}


@dataclass(frozen=True)
class Net:
    """A stock network: its configuration, and the heads and key heads of the layers that attend, by their numbers."""

    model_type: str
    more: dict[str, Any]
    heads: dict[int, tuple[int, int]] = field(default_factory=lambda: dict.fromkeys(range(4), (6, 2)))
    shares: dict[int, int] = field(default_factory=dict)  # layer -> the layer whose keys it takes

    @property
    def attends_alone(self) -> bool:
        """Whether attention alone mixes tokens."""
        return "sliding_window" in self.more


NETS = {
    "laguna": Net(
        "laguna",
        {**WINDOWED, **EXPERTS, "num_attention_heads_per_layer": [6, 4, 2, 6], "shared_expert_intermediate_size": 16},
        {0: (6, 2), 1: (4, 2), 2: (2, 2), 3: (6, 2)},
    ),
    "gemma4": Net(
        "gemma4_text",
        {**WINDOWED, "global_head_dim": 16, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
         "num_global_key_value_heads": 1, "attention_k_eq_v": True},
        {0: (6, 2), 1: (6, 1), 2: (6, 2), 3: (6, 1)},
    ),
    "gemma4 shared": Net("gemma4_text", {**SHARED, "global_head_dim": 16}, shares={2: 0, 3: 1}),
    "gemma3n": Net(
        "gemma3n_text",
        {**SHARED, "laurel_rank": 4, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.0] * 4},
        shares={2: 0, 3: 1},
    ),
    "mimo": Net(
        "mimo_v2_flash",
        {**WINDOWED, "num_key_value_heads": 1, "v_head_dim": 12, "n_routed_experts": 2, "num_experts_per_tok": 1,
         "moe_intermediate_size": 16, "mlp_layer_types": ["dense"] * 4},
        {0: (6, 2), 1: (6, 1), 2: (6, 2), 3: (6, 1)},
    ),
    "jamba": Net(
        "jamba",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1,
         "mamba_d_state": 8, "use_mamba_kernels": False},
        dict.fromkeys((1, 3), (6, 2)),
    ),
    "bamba": Net(
        "bamba",
        {"attn_layer_indices": [2], "mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_n_groups": 1,
         "mamba_d_state": 8},
        {2: (6, 2)},
    ),
    "qwen3-next": Net(
        "qwen3_next",
        {**EXPERTS, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"] * 2,
         "linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
         "linear_value_head_dim": 8, "shared_expert_intermediate_size": 16},
        dict.fromkeys((1, 3), (6, 2)),
    ),
    "lfm2": Net("lfm2", {"layer_types": ["conv", "full_attention"] * 2}, dict.fromkeys((1, 3), (6, 2))),
    "falcon-h1": Net(
        "falcon_h1",
        {"head_dim": 8, "mamba_d_ssm": 96, "mamba_n_heads": 12, "mamba_d_head": 8, "mamba_d_state": 8},
    ),
    "zamba2": Net(  # its attention modules have no numbers: they are counted
        "zamba2",
        {"num_key_value_heads": 6, "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_d_state": 8,
         "n_mamba_heads": 8, "mamba_ngroups": 1, "num_mem_blocks": 1, "use_mem_rope": True},
        dict.fromkeys((0, 1), (6, 6)),
    ),
    "granite hybrid": Net(
        "granitemoehybrid",
        {"layer_types": ["mamba", "attention"] * 2, "num_local_experts": 2, "num_experts_per_tok": 1,
         "shared_intermediate_size": 16, "mamba_n_heads": 8, "mamba_d_head": 12, "mamba_n_groups": 1,
         "mamba_d_state": 8},
        dict.fromkeys((1, 3), (6, 2)),
    ),
}  # fmt: skip
PROMPT = [5, 9, 33, 41, 7, 8, 12]
NEW = 6
TOLERANCE = 1e-5
"""Recordings are float32, and recurrent layers compute in it, in another order when they go token by token."""


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ss.Model]:
    made: dict[str, ss.Model] = {}

    def loaded(name: str, **more: Any) -> ss.Model:
        key = f"{name}{sorted(more.items())}"
        if key not in made:
            folder = tmp_path_factory.mktemp("net")
            net = NETS[name]
            config = CONFIG_MAPPING[net.model_type](**SIZES | net.more | more)
            stock: Any = AutoModelForCausalLM
            network = stock.from_config(config)
            with torch.no_grad():  # zeros at the beginning: the tokens of such a network would all be alike
                for weight in network.parameters():
                    weight.add_(0.02 * torch.randn_like(weight))
            network.save_pretrained(folder)
            made[key] = ss.load_model(folder, device="cpu", dtype="float64")
        return made[key]

    return loaded


@dataclass
class Written:
    """What attention written out saw, an entry a layer; keys are all there are, of a cache too."""

    maps: list[torch.Tensor] = field(default_factory=list)  # (head, query, key)
    no_key: list[torch.Tensor] = field(default_factory=list)  # (head, query)
    keys: list[torch.Tensor] = field(default_factory=list)  # (kv_head, key): norms
    values: list[torch.Tensor] = field(default_factory=list)
    logits: torch.Tensor = field(default_factory=lambda: torch.zeros(0))


Denied = Callable[[int, torch.Tensor], torch.Tensor]
"""Given the number of a call and its scores (1, head, query, key), what queries may not see beside the mask."""
_written = Written()
_denied: Denied | None = None


def by_hand(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **more: Any
) -> tuple[torch.Tensor, None]:
    del module
    scale, sink, softcap = (more.get(name) for name in ("scaling", "s_aux", "softcap"))
    groups = query.shape[1] // key.shape[1]
    keys, values = (states.double().repeat_interleave(groups, 1) for states in (key, value))
    scores = query.double() @ keys.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if softcap is None else (scores / softcap).tanh() * softcap
    scores = scores if mask is None else scores + mask[..., : key.shape[2]].double()
    if _denied is not None:
        scores = scores.masked_fill(_denied(len(_written.maps), scores), -torch.inf)
    if sink is not None:
        scores = torch.cat([scores, sink.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    shares = scores.softmax(-1)[..., : key.shape[2]]
    _written.maps.append(shares[0])
    _written.no_key.append(1 - shares[0].sum(-1))
    _written.keys.append(key[0].double().norm(dim=-1))
    _written.values.append(value[0].double().norm(dim=-1))
    return (shares @ values).to(value.dtype).transpose(1, 2), None


AttentionInterface.register("by-hand", by_hand)
AttentionMaskInterface.register("by-hand", eager_mask)


@contextmanager
def attention(network: Any, name: str) -> Iterator[None]:
    before = network.config._attn_implementation
    network.set_attn_implementation(name)
    try:
        yield
    finally:
        network.set_attn_implementation(before)


def write_out(model: ss.Model, tokens: np.ndarray, denied: Denied | None = None) -> Written:
    """One pass over the tokens."""
    global _written, _denied
    _written, _denied = Written(), denied
    with attention(model.network, "by-hand"), torch.no_grad():
        _written.logits = model.network(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
    _denied = None
    return _written


def write_out_by_steps(net: Net, model: ss.Model, tokens: np.ndarray, denied: Denied | None = None) -> Written:
    """The same for networks with recurrent layers in the passes of a generation: stock ones compute whole texts
    otherwise than token by token, and not to rounding alike."""
    global _written, _denied
    if net.attends_alone:
        return write_out(model, tokens, denied)
    size, cache = len(tokens), DynamicCache(config=model.network.config)
    joined = Written()
    with attention(model.network, "by-hand"), torch.no_grad():
        for start, stop in pairwise([0, *range(len(PROMPT), size + 1)]):
            _written, _denied = Written(), denied
            fed = torch.from_numpy(tokens.astype(np.int64))[None, start:stop]
            places = torch.arange(start, stop)[None]  # Bamba would ask its first layer, which counts none
            logits = model.network(fed, position_ids=places, cache=cache, use_cache=True).logits[0]
            maps = [torch.nn.functional.pad(one, (0, size - stop)) for one in _written.maps]
            joined.maps = [torch.cat(parts, 1) for parts in zip(joined.maps, maps, strict=True)] if start else maps
            joined.no_key = (
                [torch.cat(parts, 1) for parts in zip(joined.no_key, _written.no_key, strict=True)]
                if start
                else _written.no_key
            )
            joined.logits = torch.cat([joined.logits, logits]) if start else logits
    _denied, joined.keys, joined.values = None, _written.keys, _written.values
    return joined


def slides(net: Net, layer: int) -> bool:
    return bool(net.more.get("layer_types", [""] * 4)[layer] == "sliding_attention")


def held(net: Net, layer: int, step: int) -> slice:
    """Positions whose keys a layer attends to at a step."""
    total = len(PROMPT) + step
    return slice(max(0, total - WINDOW) if step and slides(net, layer) else 0, total)


@pytest.mark.parametrize("name", NETS)
def test_a_trace_holds_for_each_layer_what_it_has(name: str, load: Callable[..., ss.Model], tmp_path: Path) -> None:
    net, model = NETS[name], load(name)
    numbers = list(net.heads)
    keep = Recording(
        by_group="heads", norms=True, entropy=True, maps=Maps(steps=(0, 2), layers=tuple(numbers[::-1]), heads=(3, 0))
    )
    settings = ss.Decoding(max_new_tokens=NEW)
    trace = ss.record(model, [PROMPT], settings, out=tmp_path / "t.zarr", recording=keep)
    sample = trace[0].load()
    assert sample["layer"].values.tolist() == numbers
    uneven = net.heads != dict.fromkeys(range(4), (6, 2))
    assert ("layer_heads" in sample.coords) == uneven
    if uneven:
        assert list(zip(sample["layer_heads"].values, sample["layer_kv_heads"].values, strict=True)) == [
            *net.heads.values()
        ]
    whole = write_out(model, sample["sequence"].values)
    with attention(model.network, "eager"), torch.no_grad():
        eager = model.network(torch.from_numpy(sample["sequence"].values.astype(np.int64))[None]).logits[0]
    torch.testing.assert_close(whole.logits, eager, atol=1e-4, rtol=1e-4)  # whose softmax is in float32
    written = write_out_by_steps(net, model, sample["sequence"].values)
    assert sample.sizes["step"] == NEW
    for call, (layer, (heads, kv_heads)) in enumerate(net.heads.items()):
        maps, norms = written.maps[call].numpy(), written.keys[call].numpy()
        assert maps.shape[0] == heads and norms.shape[0] == kv_heads
        if layer in net.shares:
            torch.testing.assert_close(written.keys[call], written.keys[net.shares[layer]])
        of = sample.sel(layer=layer)
        np.testing.assert_allclose(of["final_received"][:heads], whole.maps[call].mean(1), atol=TOLERANCE)
        for step in range(NEW):
            at, total = held(net, layer, step), len(PROMPT) + step
            rows = maps[:, : len(PROMPT)] if step == 0 else maps[:, [total - 1]]
            expected = np.full((6, total), np.nan)
            expected[:heads, at] = rows.mean(1)[:, at]
            there = of.isel(step=step, position=slice(total))
            np.testing.assert_allclose(there["received"], expected, atol=TOLERANCE)
            asked = "prompt" if step == 0 else "committed"
            by_group = there["received_by_group"].sel(group=asked)
            np.testing.assert_allclose(by_group, expected, atol=TOLERANCE)
            entropy = np.full((6, total), np.nan)
            first = 0 if step == 0 else total - 1
            none = written.no_key[call].numpy()[:, first:total]
            logged = rows * np.log(np.maximum(rows, 1e-300))
            entropy[:heads, first:] = -logged.sum(-1) - none * np.log(np.maximum(none, 1e-300))
            np.testing.assert_allclose(there["entropy"], entropy, atol=10 * TOLERANCE)
            for variable, one in (("key_norm", written.keys), ("value_norm", written.values)):
                known = np.full((there.sizes["kv_head"], total), np.nan)
                known[:kv_heads, at] = one[call].numpy()[:, at]
                np.testing.assert_allclose(there[variable], known, rtol=TOLERANCE)
        for place, step in enumerate((0, 2)):
            stored = of["attention"].isel(map_step=place).sel(map_layer=layer)
            for head in (3, 0):
                rows = stored.sel(map_head=head).values
                start, total = (0, len(PROMPT)) if step == 0 else (len(PROMPT) + 1, len(PROMPT) + 2)
                if head >= heads:
                    assert np.isnan(rows).all()
                else:
                    np.testing.assert_allclose(
                        rows[start:total, :total], maps[head, start:total, :total], atol=TOLERANCE
                    )


@pytest.mark.parametrize("name", NETS)
def test_masking_equals_attention_with_the_keys_taken_away(
    name: str, load: Callable[..., ss.Model], tmp_path: Path
) -> None:
    """The first key of every layer, or of the last layer alone, named by its number."""
    net, model = NETS[name], load(name)
    last = max(net.heads)
    for layers in (None, (last,)):
        plan = ss.MaskSinks(First(1), layers=layers)
        settings = ss.Decoding(max_new_tokens=NEW)
        trace = ss.record(model, [PROMPT], settings, out=tmp_path / f"{layers}.zarr", intervention=plan)
        sample = trace[0].load()
        numbers, tokens = list(net.heads), sample["sequence"].values

        def denied(call: int, scores: torch.Tensor, layers: Any = layers, numbers: list[int] = numbers) -> torch.Tensor:
            queries, keys = scores.shape[2:]
            first = torch.arange(keys - queries, keys)
            oldest = (first - WINDOW + 1).clamp(min=0) if slides(net, numbers[call]) else torch.zeros_like(first)
            taken = (torch.arange(keys) == oldest[:, None]) & (first >= len(PROMPT))[:, None]
            return taken if layers is None or numbers[call] in layers else torch.zeros_like(taken)

        written = write_out_by_steps(net, model, tokens, denied)
        chosen = written.logits[len(PROMPT) - 1 : -1].argmax(-1)
        assert tokens[len(PROMPT) :].tolist() == chosen.tolist()
        for call, (layer, (heads, _)) in enumerate(net.heads.items()):
            for step in range(1, NEW):
                at, total = held(net, layer, step), len(PROMPT) + step
                there = sample["received"].sel(layer=layer).isel(step=step, head=slice(heads), position=at)
                np.testing.assert_allclose(there, written.maps[call][:, total - 1, at], atol=TOLERANCE)
                if layers is None or layer in layers:
                    assert (there[:, 0] == 0).all()
        assert float(sample["removed"].sel(quantity="keys").sum()) > 0


def test_masking_names_the_layers_that_there_are(load: Callable[..., ss.Model]) -> None:
    with pytest.raises(UserError, match=r"no layer 0: .* has layers 1, 3 \(the others have no attention\)"):
        ss.generate(load("jamba"), [PROMPT], ss.Decoding(max_new_tokens=3), intervention=ss.MaskSinks(1, layers=(0,)))


@pytest.mark.parametrize("control", [None, "random", "equal-mass"])
def test_controls_take_as_many_keys_from_the_heads_that_there_are(
    control: str | None, load: Callable[..., ss.Model]
) -> None:
    model = load("laguna")
    plan = ss.MaskSinks(1, control=control, heads=(0, 5))
    removed = ss.generate(model, [PROMPT], ss.Decoding(max_new_tokens=3), intervention=plan).removed
    assert removed is not None
    found = removed.whole()
    # Head 0 in four layers and head 5 in the two that have it, in two steps.
    assert float(found.units) == 12
    if control != "equal-mass":
        assert float(found.keys) == 12


@pytest.mark.parametrize("name", ["laguna", "gemma4", "mimo"])
def test_dropping_keys_layer_by_layer(name: str, load: Callable[..., ss.Model], tmp_path: Path) -> None:
    """After the prompt each key head keeps its lowest norms, and later queries see those and what came since."""
    net, model = NETS[name], load(name)
    settings = ss.Decoding(max_new_tokens=NEW)
    trace = ss.record(model, [PROMPT], settings, out=tmp_path / "t.zarr", compression=Compress("key-norm", 0.5))
    sample = trace[0].load()
    tokens, numbers = sample["sequence"].values, list(net.heads)
    kept = sample["received"].notnull().values  # (step, layer, head, position)

    def denied(call: int, scores: torch.Tensor) -> torch.Tensor:
        _, heads, queries, keys = scores.shape
        gone = torch.zeros(1, heads, queries, keys, dtype=torch.bool)
        for step in range(1, NEW):
            row = len(PROMPT) + step - 1
            if row < queries:
                gone[0, :, row] = ~torch.from_numpy(kept[step, call, :heads, :keys])
        return gone

    written = write_out(model, tokens, denied)
    assert tokens[len(PROMPT) :].tolist() == written.logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()
    for call, layer in enumerate(numbers):
        heads, kv_heads = net.heads[layer]
        assert not kept[:, call, heads:].any()
        for step in range(1, NEW):
            total = len(PROMPT) + step
            row = np.where(kept[step, call, :heads, :total], written.maps[call][:, total - 1, :total], np.nan)
            there = sample["received"].isel(layer=call, step=step, head=slice(heads), position=slice(total))
            np.testing.assert_allclose(there, row, atol=TOLERANCE)
        norms = written.keys[call][:, : len(PROMPT)].numpy()
        if not slides(net, layer):
            lowest = np.argsort(norms, -1)[:, : -(-len(PROMPT) // 2)]
            for head in range(heads):
                assert set(np.flatnonzero(kept[1, call, head, : len(PROMPT)])) == set(
                    lowest[head // (heads // kv_heads)]
                )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (name, "from which keys can't be dropped")
        for name in ("jamba", "bamba", "qwen3-next", "lfm2", "zamba2", "falcon-h1", "granite hybrid")
    ]
    + [(name, "take their keys from others") for name in ("gemma4 shared", "gemma3n")],
)
def test_layers_whose_keys_cannot_be_dropped_are_refused(name: str, reason: str, load: Callable[..., ss.Model]) -> None:
    with pytest.raises(UserError, match=reason):
        ss.generate(load(name), [PROMPT], ss.Decoding(max_new_tokens=3), compression=Compress("key-norm", 0.5))


@pytest.mark.parametrize(
    ("variable", "labels"),
    [
        ("layer", [3, 1]),
        ("layer", [-1, 3]),
        ("layer_heads", [0, 6]),
        ("layer_heads", [6, 7]),
        ("layer_kv_heads", [1, 1]),
    ],
)
def test_numbers_of_layers_and_heads_that_nobody_wrote_are_damage(
    variable: str, labels: list[int], load: Callable[..., ss.Model], tmp_path: Path
) -> None:
    keep = Recording(norms=True)
    ss.record(load("jamba"), [PROMPT], ss.Decoding(max_new_tokens=2), out=tmp_path / "t.zarr", recording=keep)
    (tmp_path / "t.zarr" / "samples" / "000000" / variable / "c.0").write_bytes(np.array(labels, "<i4").tobytes())
    with pytest.raises(UserError, match=f"{variable} has labels that were never written"):
        ss.open_trace(tmp_path / "t.zarr")[0]
