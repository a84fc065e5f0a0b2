"""Watching, recording, masking sinks and evaluating over block caches that drop keys: by columns of the canvas."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from block_caches import BLOCKS, PROMPTS, generated, load_tiny, oracle_logits, real_columns

import sinkscope as ss
from sinkscope.attention.given import Cut
from sinkscope.compression import Compress, compress_prefix
from sinkscope.decoding import Denoising
from sinkscope.evaluation import evaluate, find_task, task_settings
from sinkscope.families import Model
from sinkscope.interventions.masking import Masking

CACHES = pytest.mark.parametrize("cache", ["prefix", "dual"])
HALF = Compress("key-norm", 0.5)


@pytest.fixture(scope="module")
def llada() -> Model:
    return load_tiny("llada-tiny")


@pytest.fixture(scope="module")
def gqa() -> Model:
    return load_tiny("llada-gqa-tiny")


@CACHES
@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
def test_dropped_keys_are_not_there_and_have_no_norm(
    gqa: Model, monkeypatch: pytest.MonkeyPatch, kernel: str, cache: str
) -> None:
    seen = []
    with ss.watch(gqa, ss.Collect(norms=True), kernel=kernel) as watched:
        settings = replace(BLOCKS, cache=cache)
        take = type(watched).take

        def noted(self: Any, statistics: Any) -> None:
            take(self, statistics)
            seen.append(statistics)

        monkeypatch.setattr(type(watched), "take", noted)
        _, passes = generated(gqa, monkeypatch, settings, HALF)
    real = real_columns(PROMPTS, 9)
    assert any(made.gone for made in passes)
    for statistics, made in zip(seen, passes, strict=True):
        gone = torch.stack(made.gone) if made.gone else (~real)[None, :, None].expand(2, -1, 2, -1)
        by_head = gone.repeat_interleave(2, dim=2)
        # Padding receives nothing; what the cache dropped, padding too, is not there.
        assert (statistics.received[by_head].isnan() if made.gone else statistics.received[by_head] == 0).all()
        assert (statistics.received[~by_head] > 0).all()
        torch.testing.assert_close(statistics.received.nansum(-1), torch.ones(2, 3, 4, dtype=torch.float64))
        for norm in (statistics.key_norm, statistics.value_norm):
            assert torch.equal(norm.isnan(), gone if made.gone else torch.zeros_like(gone))


@CACHES
def test_a_recorded_run_shows_the_columns_of_the_canvas(gqa: Model, tmp_path: Path, cache: str) -> None:
    settings, recording = replace(BLOCKS, cache=cache), ss.Recording(norms=True, precision="float32")
    together, alone = (
        ss.record(
            gqa, PROMPTS, settings, out=tmp_path / f"{size}", recording=recording, compression=HALF, batch_size=size
        )
        for size in (3, 1)
    )
    assert together.attrs["compression"] == HALF.to_dict()
    written = ss.generate(gqa, PROMPTS, settings, compression=HALF)
    for row, prompt in enumerate(PROMPTS):
        sample, single = together[str(row)], alone[str(row)]
        assert sample["sequence"].values.tolist() == [
            *prompt,
            *written.sequences[row, written.prompt_length :].tolist(),
        ]
        np.testing.assert_allclose(sample["received"], single["received"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(sample["key_norm"], single["key_norm"], rtol=1e-5, atol=1e-6)
        for step in range(sample.sizes["step"]):
            received = sample["received"].sel(step=step).values
            np.testing.assert_allclose(np.nansum(received, -1), 1, rtol=1e-5)
            start, stop = int(sample["query_start"][step]), int(sample["query_stop"][step])
            context = start + len(prompt) + 9 - stop
            dropped = np.isnan(sample["key_norm"].sel(step=step).values).sum(-1)
            assert (dropped == context // 2).all(), "none in a block's first pass, which feeds everything"


def noted_cuts(monkeypatch: pytest.MonkeyPatch) -> list[list[Cut | None]]:
    """The cuts of every pass, a layer each."""
    cuts: list[list[Cut | None]] = []
    begin, cut = Masking.begin, Masking.cut

    def began(self: Masking, *given: Any) -> None:
        cuts.append([])
        begin(self, *given)

    def made(self: Masking, *given: Any) -> Cut | None:
        cuts[-1].append(cut(self, *given))
        return cuts[-1][-1]

    monkeypatch.setattr(Masking, "begin", began)
    monkeypatch.setattr(Masking, "cut", made)
    return cuts


@CACHES
@pytest.mark.parametrize("detect", ["previous", "same"])
@pytest.mark.parametrize("control", [None, "random", "lowest"])
def test_masking_sinks_over_a_cache_that_dropped_keys(
    llada: Model, monkeypatch: pytest.MonkeyPatch, detect: str, control: str | None, cache: str
) -> None:
    """The same logits as with both the dropped and the masked keys at -inf; what was dropped is never masked."""
    cuts = noted_cuts(monkeypatch)
    masking = ss.MaskSinks(2, control=control, detect=detect)
    steps, passes = generated(llada, monkeypatch, replace(BLOCKS, cache=cache), HALF, intervention=masking)
    hidden = []
    for made, cut in zip(passes, cuts, strict=True):
        gone = made.gone or [torch.zeros(1, 1, 18, dtype=torch.bool)] * 3
        for layer, one in enumerate(cut):
            if one is not None:
                assert not (one.keys & gone[layer]).any()
                assert (one.keys.sum(-1) == 2).all()
        both = [lost if one is None else lost | one.keys for lost, one in zip(gone, cut, strict=True)]
        hidden.append(replace(made, gone=both))
    assert sum(one is not None for cut in cuts for one in cut) == 3 * (len(passes) - 1)
    for made, exact in zip(passes, oracle_logits(llada, hidden, real_columns(PROMPTS, 9)), strict=True):
        torch.testing.assert_close(made.logits, exact, rtol=1e-9, atol=1e-9)
    assert all(step.removed is not None for step in steps)


@CACHES
def test_a_key_that_was_dropped_is_in_no_map(llada: Model, monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    """A block's first pass has every key again, but the map of the pass before knows only those that were there."""
    cuts = noted_cuts(monkeypatch)
    lowest = ss.MaskSinks(3, control="lowest")
    _, passes = generated(llada, monkeypatch, replace(BLOCKS, cache=cache), HALF, intervention=lowest)
    turns = [number for number, made in enumerate(passes) if made.first and number]
    assert len(turns) == 2
    for number in turns:
        for gone, cut in zip(passes[number - 1].gone, cuts[number], strict=True):
            assert cut is not None
            assert not (cut.keys & gone).any()
            assert (cut.keys.sum(-1) == 3).all()


@pytest.mark.parametrize("guidance", [0.0, 0.7])
def test_masked_rows_agree_alone_and_together(llada: Model, guidance: float) -> None:
    settings = replace(BLOCKS, threshold=0.4, cfg_scale=guidance)
    for masking in (ss.MaskSinks(2), ss.MaskSinks(2, control="random"), ss.MaskSinks(1, detect="same", how="values")):
        together = ss.generate(llada, PROMPTS, settings, intervention=masking, compression=HALF)
        for row, prompt in enumerate(PROMPTS):
            alone = ss.generate(llada, prompt, settings, intervention=masking, compression=HALF)
            assert together.removed is not None
            assert alone.removed is not None
            assert torch.equal(together.sequences[row, together.prompt_length :], alone.sequences[0, len(prompt) :])
            assert float(together.removed.mass[row]) == pytest.approx(float(alone.removed.mass[0]), rel=1e-6)


def test_masking_sinks_with_everything_kept_is_the_run_without_compression(llada: Model) -> None:
    plain, whole = (
        ss.generate(llada, PROMPTS, BLOCKS, intervention=ss.MaskSinks(3), compression=compression)
        for compression in (None, Compress("key-norm", 1.0))
    )
    assert torch.equal(plain.sequences, whole.sequences)


def test_received_attention_under_a_mask_is_what_the_scorer_sees(llada: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that are masked in a block's first pass received nothing in it, and are the first to go."""
    cuts = noted_cuts(monkeypatch)
    masking = ss.MaskSinks(2, detect="same", first_step=0)
    with ss.watch(llada):
        compress = Compress("received-attention", 0.6)
        _, passes = generated(llada, monkeypatch, BLOCKS, compress, intervention=masking)
    for layer, cut in enumerate(cuts[0]):
        assert cut is not None
        context = torch.ones(18, dtype=torch.bool)
        context[passes[1].fed[0] : passes[1].fed[1]] = False
        assert (passes[1].gone[layer] | ~cut.keys | ~context).all()


def test_evaluating_with_a_compressed_cache() -> None:
    model = ss.load_model("twin-dlm", device="cpu")
    settings = task_settings(model, find_task("copy"))
    assert isinstance(settings, Denoising)
    settings = replace(settings, cache="dual")
    plain, whole, tenth = (
        evaluate(model, "copy", n=12, settings=settings, compression=compression, batch_size=5)
        for compression in (None, Compress("key-norm", 1.0), Compress("key-norm", 0.1))
    )
    assert whole.right == plain.right
    assert plain.correct > tenth.correct
    assert plain.compression is None
    assert tenth.compression == Compress("key-norm", 0.1).to_dict()
    assert tenth.to_dict()["compression"]["budget"] == 0.1


def test_evaluating_after_a_prefix() -> None:
    """Answers are read behind the prefix's tokens, which stand at the head of every sequence."""
    model = ss.load_model("twin-ar", device="cpu")
    prefix = compress_prefix(model, "It is a cold night.", Compress("key-norm", 0.5))
    score = evaluate(model, "copy", n=12, compression=prefix, batch_size=5)
    assert score.compression == prefix.to_dict()
    for wrong in score.wrong:
        said = ss.generate(model, wrong.prompt, score.settings, compression=prefix).text
        assert said is not None
        assert said[0].startswith(wrong.got)
    assert score.correct + len(score.wrong) == 12
    assert score.correct > 0
