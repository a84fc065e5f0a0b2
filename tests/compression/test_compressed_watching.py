"""Watching, recording and masking sinks over a cache that has dropped keys: by columns of the sequence, as ever."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from compression_models import FullCacheOracle, dropped_from, feed, left_padded, load_kind, some_tokens

import sinkscope as ss
from sinkscope.attention.cutting import cutting
from sinkscope.attention.given import Attention, Cut
from sinkscope.compression import CachedLayer, Compress, Protect, ReceivedAttention
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.interventions.masking import Masking
from sinkscope.sinks import main_sink_strength

PASSES = ((0, 17), (17, 21), (21, 22), (22, 23))
PLAN = Compress("key-norm", 0.5, when="both", prune_after=9)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_kind("llama", tmp_path_factory.mktemp("kinds"))


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_kind("qwen2", tmp_path_factory.mktemp("kinds"))


class Eavesdropper:
    """Takes the oracle's probabilities: received attention by hand, means over the real queries."""

    def __init__(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        self.maps: list[torch.Tensor] = []
        softmax = torch.Tensor.softmax

        def listening(scores: torch.Tensor, dim: int) -> torch.Tensor:
            probabilities = softmax(scores, dim)
            self.maps.append(probabilities.nan_to_num(0))
            return probabilities

        self._patch = (monkeypatch, listening)
        self.oracle = FullCacheOracle(model)

    def feed(
        self, tokens: torch.Tensor, mask: torch.Tensor, start: int, stop: int, gone: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Maps (layer, batch, head, query, column) of a pass."""
        monkeypatch, listening = self._patch
        self.maps = []
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "softmax", listening)
            self.oracle.feed(tokens, mask, start, stop, gone)
        width = max(one.shape[-1] for one in self.maps)
        return torch.stack([torch.nn.functional.pad(one, (width - one.shape[-1], 0)) for one in self.maps])


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
def test_statistics_are_those_of_the_full_cache_with_the_dropped_keys_hidden(
    kind: str, kernel: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Model = request.getfixturevalue(kind)
    tokens, mask = left_padded((23, 18))
    cache, ear = PLAN.cache(model, seeds=(0, 0)), Eavesdropper(model, monkeypatch)
    gone: list[torch.Tensor] = []
    collect = ss.Collect(norms=True, entropy=True, map_layers=(0, 2), map_heads=(1, 4))
    for start, stop in PASSES:
        with ss.watch(model, collect, kernel=kernel) as watched:
            feed(model.network, cache, tokens, mask, start, stop)
        maps = ear.feed(tokens, mask, start, stop, gone)
        real = mask[:, None, start:stop, None].double()
        received = (maps * real).sum(3) / real.sum(2).clamp(min=1)
        found = watched.last
        # A sliding cache that forgot the first columns shows none of them.
        whole = torch.nn.functional.pad(found.received, (received.shape[-1] - found.received.shape[-1], 0)).nan_to_num(
            0
        )
        # Weights of the means are float32.
        torch.testing.assert_close(whole, received, rtol=1e-6, atol=1e-7)
        assert found.entropy is not None
        rows = torch.special.entr(maps).sum(-1)
        seen = real.squeeze(-1).bool().expand_as(rows[0])
        torch.testing.assert_close(found.entropy[:, seen], rows[:, seen], rtol=1e-9, atol=1e-9)
        for layer in (0, 2):
            at = found.maps[layer]
            expected = maps[layer][:, [1, 4]][..., maps.shape[-1] - at.shape[-1] :]
            torch.testing.assert_close(at[seen[:, :2]], expected[seen[:, :2]], rtol=1e-9, atol=1e-9)
        gone = dropped_from(cache, stop)


def test_dropped_keys_are_not_there(llama: Model) -> None:
    cache = Compress("key-norm", 0.25).cache(llama)
    tokens, mask = left_padded((19,))
    feed(llama.network, cache, tokens, mask, 0, 16)
    gone = torch.stack(dropped_from(cache, 16))  # (layer, batch, kv_head, column)
    with ss.watch(llama, ss.Collect(norms=True)) as watched:
        feed(llama.network, cache, tokens, mask, 16, 19)
    statistics = watched.last
    assert statistics.received.shape[-1] == 19
    assert statistics.key_norm is not None
    assert statistics.value_norm is not None
    for norm in (statistics.key_norm, statistics.value_norm):
        assert torch.equal(norm[..., :16].isnan(), gone)
        assert not norm[..., 16:].isnan().any()
    by_head = gone.repeat_interleave(3, dim=2)
    assert torch.equal(statistics.received[..., :16].isnan(), by_head)
    assert (statistics.received[..., :16][~by_head] > 0).all()
    torch.testing.assert_close(statistics.received.nansum(-1), torch.ones(3, 1, 6, dtype=torch.float64))


def test_received_attention_adds_up_over_passes(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the scorer is shown at every cut: sums over all real queries since the text began, by the oracle."""
    compress = Compress("received-attention", 6, when="both", prune_after=9)
    lengths, width = (23, 19), 23
    tokens, mask = left_padded(lengths)
    shown: list[CachedLayer] = []
    importance = ReceivedAttention.importance

    def spied(self: ReceivedAttention, cached: CachedLayer) -> torch.Tensor:
        shown.append(cached)
        return importance(self, cached)

    monkeypatch.setattr(ReceivedAttention, "importance", spied)
    with ss.watch(llama):
        cache = compress.cache(llama, seeds=(0, 0))
    ear, gone = Eavesdropper(llama, monkeypatch), list[torch.Tensor]()
    total, cuts = torch.zeros(3, 2, 6, width, dtype=torch.float64), 0
    for start, stop in PASSES:
        shown.clear()
        with ss.watch(llama):
            feed(llama.network, cache, tokens, mask, start, stop)
        maps = ear.feed(tokens, mask, start, stop, gone)
        total[..., :stop] += (maps * mask[:, None, start:stop, None]).sum(3)
        for cached in shown:
            cuts += 1
            assert cached.received is not None
            for row, length in enumerate(lengths):
                real = cached.real[row, 0]
                columns = cached.positions[row][:, real] + width - length  # (kv_head, key)
                expected = total[cached.layer, row].gather(-1, columns.repeat_interleave(3, dim=0))
                torch.testing.assert_close(cached.received[row][:, real].double(), expected, rtol=1e-5, atol=1e-6)
        gone = dropped_from(cache, stop)
    assert cuts == 2 * 3, "after the prompt, and once more"


def test_a_recorded_run_shows_the_positions_of_the_text(llama: Model, tmp_path: Path) -> None:
    prompts = [some_tokens(16).tolist(), some_tokens(11).tolist()]
    settings, recording = ss.Decoding(max_new_tokens=6), ss.Recording(norms=True, precision="float32")
    together, alone = (
        ss.record(
            llama, prompts, settings, out=tmp_path / f"{size}", recording=recording, compression=PLAN, batch_size=size
        )
        for size in (2, 1)
    )
    assert together.attrs["compression"] == PLAN.to_dict()
    written = ss.generate(llama, prompts, settings, compression=PLAN).sequences
    for name, row in (("0", 0), ("1", 1)):
        sample, single = together[name], alone[name]
        length = len(prompts[row])
        assert (
            sample["sequence"].values.tolist()[length:]
            == written[row, 16:].tolist()[: sample.sizes["position"] - length]
        )
        np.testing.assert_allclose(sample["received"], single["received"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(sample["key_norm"], single["key_norm"], rtol=1e-5, atol=1e-6)
        received = sample["received"].sel(step=1).values[..., : length + 1]
        np.testing.assert_allclose(np.nansum(received, -1), 1, rtol=1e-5)
        missing = np.isnan(sample["key_norm"].sel(step=1).values[..., :length]).sum(-1)
        assert (missing == length - -(-length // 2)).all()
        check_sinks_of_what_is_there(sample)


def check_sinks_of_what_is_there(sample: xr.Dataset) -> None:
    """Every rule and measure sees a row as if its dropped keys had never been: n is the number of keys there."""
    rows = {place: row[~np.isnan(row)] for place, row in rows_of(sample["received"].values.astype(np.float64))}
    sinks = ss.find_sinks(sample, ss.Excess(0.2))
    shares = ss.sinks_per_layer(sinks)
    found = dict(rows_of(sinks.values))
    wanted = {place: row * len(row) > 1 + 0.2 * (1 - 1 / len(row)) for place, row in rows.items()}
    for place, there in rows_of(~np.isnan(sample["received"].values)):
        np.testing.assert_array_equal(found[place][there], wanted[place])
        assert not found[place][~there].any()
    for layer, share in zip(shares["layer"].values, shares["share"].values, strict=True):
        of_layer = np.concatenate([marks for place, marks in wanted.items() if place[1] == layer])
        assert share == pytest.approx(of_layer.mean())
    strength = main_sink_strength(sample)
    for (layer, head), score in np.ndenumerate(strength.values):
        best = [row.max() * len(row) for place, row in rows.items() if place[1:] == (layer, head)]
        assert score == pytest.approx(np.mean(best))
    # A mean over heads takes a dropped key as one that receives nothing there.
    where = ss.sink_positions(sample)
    whole = np.nan_to_num(sample["received"].values.astype(np.float64)).mean((1, 2))
    np.testing.assert_allclose(where["overall_received"], whole.max(-1), rtol=1e-6)
    assert where["overall"].values.tolist() == whole.argmax(-1).tolist()
    motion = ss.sink_motion(sample, sinks)
    assert np.isfinite(motion["spatial_variance"])


def rows_of(values: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """Rows along the last axis, by (step, layer, head)."""
    return ((place, values[place]) for place in np.ndindex(values.shape[:-1]))


class OneColumn:
    """Cuts one column from all heads and queries of all layers; remembers what it was shown."""

    needs_received = True

    def __init__(self, column: int) -> None:
        self.column = column
        self.before: list[torch.Tensor] = []
        self.under: list[torch.Tensor] = []
        self.removed: list[torch.Tensor] = []

    def weights(self, attention: Attention) -> torch.Tensor:
        batch, _, queries, _ = attention.query.shape
        return torch.full((batch, queries), 1 / queries, dtype=torch.float64)

    def cut(self, attention: Attention, received: object) -> Cut:
        self.before.append(received())  # type: ignore[operator]
        keys = torch.zeros(*attention.query.shape[:2], attention.width, dtype=torch.bool)
        keys[..., self.column] = True
        return Cut(keys=keys)

    def on_layer_end(self, received: torch.Tensor | None, removed: torch.Tensor | None) -> None:
        assert received is not None
        assert removed is not None
        self.under.append(received)
        self.removed.append(removed)


def test_a_cut_names_columns_whether_their_keys_are_there_or_not(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    compress = Compress(Protect(first=1), 0.5)
    tokens, mask = left_padded((20,))
    for column in (0, 5, 17):
        cache, ear = compress.cache(llama), Eavesdropper(llama, monkeypatch)
        feed(llama.network, cache, tokens, mask, 0, 16)
        ear.feed(tokens, mask, 0, 16, [])
        gone = dropped_from(cache, 16)
        cutter = OneColumn(column)
        with cutting(cutter):
            ours = feed(llama.network, cache, tokens, mask, 16, 18)
        # Column 17 is fed in this very pass; query 16 never sees it.
        hidden = [torch.nn.functional.pad(one, (0, 2)) for one in gone]
        for one in hidden:
            one[..., column] = True
        exact = ear.oracle.feed(tokens, mask, 16, 18, hidden)
        torch.testing.assert_close(ours, exact, rtol=1e-9, atol=1e-9)
        assert all(one.shape[-1] == 18 for one in (*cutter.before, *cutter.under))
        assert all((one[..., column] == 0).all() for one in cutter.under)
        first = torch.stack([one[:, :, :16].repeat_interleave(3, dim=1) for one in gone])
        assert (torch.stack(cutter.before)[..., :16][first] == 0).all()
        there = ~first[0, ..., column] if column < 16 else torch.ones(1, 6, dtype=torch.bool)
        assert torch.equal(cutter.removed[0].sum(-1) > 0, there)


def test_masked_sinks_are_keys_that_are_there(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """No layer or head spends its mask on a key that was dropped, and rows agree alone and together."""
    decide, wasted = Masking.cut, list[int]()

    def spied(self: Masking, attention: Attention, received: Callable[[], torch.Tensor]) -> Cut | None:
        cut = decide(self, attention, received)
        if cut is not None and attention.present is not None:
            wasted.append(int((cut.keys & ~attention.present).sum()))
        return cut

    monkeypatch.setattr(Masking, "cut", spied)
    prompts = [some_tokens(21).tolist(), some_tokens(15).tolist()]
    settings = ss.Decoding(max_new_tokens=7)
    for masked in (ss.MaskSinks(2), ss.MaskSinks(2, detect="same"), ss.MaskSinks(2, control="random")):
        together = list(ss.decode(llama, prompts, settings, intervention=masked, compression=PLAN))
        for row, prompt in enumerate(prompts):
            alone = list(ss.decode(llama, [prompt], settings, intervention=masked, compression=PLAN))
            for batched, single in zip(together, alone, strict=False):
                assert torch.equal(batched.canvas[row, 21 - len(prompt) :], single.canvas[0])
        for step in together[1:]:
            assert step.removed is not None
            taking_part = step.takes_part
            assert (step.removed.keys[taking_part] == 2 * 3 * 6).all(), "two keys of every layer and head"
            assert (step.removed.mass[taking_part] > 0).all()
    assert len(wasted) > 50
    assert set(wasted) == {0}


def test_masking_sinks_with_everything_kept_is_the_run_without_compression(llama: Model) -> None:
    prompts, settings = [some_tokens(18).tolist(), some_tokens(12).tolist()], ss.Decoding(max_new_tokens=6)
    plain = ss.generate(llama, prompts, settings, intervention=ss.MaskSinks(3))
    whole = ss.generate(llama, prompts, settings, intervention=ss.MaskSinks(3), compression=Compress("key-norm", 1.0))
    assert torch.equal(plain.sequences, whole.sequences)


def test_masks_that_take_all_that_is_left_and_clean_copies_are_refused(llama: Model) -> None:
    prompts, clean = [some_tokens(10).tolist()], ss.MaskSinks(1, detect_from="clean")
    with pytest.raises(UserError, match="5 keys can't be masked where"):
        ss.decode(
            llama,
            prompts,
            ss.Decoding(max_new_tokens=3),
            intervention=ss.MaskSinks(5),
            compression=Compress("key-norm", 0.5),
        )
    with pytest.raises(UserError, match="a clean copy beside a compressed cache"):
        ss.decode(llama, prompts, ss.Decoding(max_new_tokens=3), intervention=clean, compression=Compress())
