"""What `record` writes: against eager attention of every pass, and consistent with what `generate` gives."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray
from eager_oracle import causal_maps, group_of, passes_of
from numpy.typing import NDArray
from transformers import Lfm2Config, Lfm2ForCausalLM

from sinkscope.decoding import Decoding, Denoising, generate
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model
from sinkscope.trace import Maps, Recording, Trace, record

MASK = 255
PROMPTS = [[7, 3, 11], [5, 9, 2, 8, 1, 4, 6], [13, 21, 2, 40, 77]]
SHORT = Denoising(gen_length=6, block_length=3, steps=6)
WAYS = {
    "whole canvas": SHORT,
    "two a step": replace(SHORT, steps=4, confidence="margin"),
    "threshold": replace(SHORT, threshold=0.05),
    "prefix cache": replace(SHORT, cache="prefix"),
    "dual cache": replace(SHORT, cache="dual"),
    "guided": replace(SHORT, cfg_scale=0.8),
    "guided dual cache": replace(SHORT, cfg_scale=0.8, cache="dual"),
    "sampled": replace(SHORT, temperature=1.0, seed=5),
    "timesteps": replace(SHORT, block_length=None, schedule="dream", confidence="entropy", steps=5),
}
EVERYTHING = Recording(
    precision="float32", norms=True, entropy=True, maps=Maps(steps=(3, 0), layers=(2, 0), heads=(1, 3))
)
EVERYTHING_BUT_MAPS = replace(EVERYTHING, maps=None)
# Both sides are float32, three layers deep, with scores large enough to make sharp rows of rounding errors.
CLOSE = 1e-4
ENDING = Decoding(max_new_tokens=9)


def close(found: xarray.DataArray, wanted: torch.Tensor) -> None:
    np.testing.assert_allclose(found.values, wanted.numpy(), atol=CLOSE, rtol=CLOSE)


@pytest.fixture(scope="module")
def causal(causal_folder: Path) -> Model:
    return load_model(causal_folder, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def ending(causal: Model) -> Model:
    """The causal model with an end token that the first prompt reaches at its third token, the others later."""
    first = generate(causal, PROMPTS[0], ENDING).sequences[0, 3:].tolist()
    assert first.index(first[2]) == 2
    return replace(causal, family=replace(causal.family, eos_token_ids=(first[2],)))


Recorded = tuple[Model, Trace]


@pytest.fixture(scope="module")
def recorded(tiny: Callable[[str], Model], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Recorded]:
    """A trace of three prompts of unequal length in one left-padded batch, made once."""
    made: dict[tuple[str, str], Recorded] = {}

    def get(folder: str, way: str) -> Recorded:
        if (folder, way) not in made:
            model, out = tiny(folder), tmp_path_factory.mktemp("traces") / "t.zarr"
            made[folder, way] = model, record(model, PROMPTS, WAYS[way], out=out, recording=EVERYTHING, batch_size=3)
        return made[folder, way]

    return get


each_way = pytest.mark.parametrize("way", WAYS)
each_family = pytest.mark.parametrize("folder", ["llada-tiny", "dream-tiny"])


@each_family
@each_way
def test_received_norms_and_entropy_equal_eager(
    recorded: Callable[[str, str], Recorded], folder: str, way: str
) -> None:
    model, trace = recorded(folder, way)
    for number, prompt in enumerate(PROMPTS):
        sample = trace[number].load()
        assert sample.sizes["position"] == len(prompt) + 6
        passes = passes_of(model.network, sample, torch.from_numpy(sample["canvas"].values).long())
        for step, made in enumerate(passes):
            close(sample["received"][step], made.received)
            close(sample["key_norm"][step], made.key_norm)
            close(sample["value_norm"][step], made.value_norm)
            close(sample["entropy"][step, :, :, made.first : made.last], made.entropy)
            outside = [place for place in sample["position"].values if not made.first <= place < made.last]
            assert bool(sample["entropy"][step].isel(position=outside).isnull().all())
        np.testing.assert_allclose(sample["received"].sum("position").values, 1, rtol=1e-5)


@each_family
@each_way
def test_groups_equal_eager_and_add_up(recorded: Callable[[str, str], Recorded], folder: str, way: str) -> None:
    model, trace = recorded(folder, way)
    for sample in (one.load() for one in trace):
        names = sample["group"].values.tolist()
        passes = passes_of(model.network, sample, torch.from_numpy(sample["canvas"].values).long())
        for step, made in enumerate(passes):
            labels = [group_of(sample, step, place, MASK) for place in range(made.first, made.last)]
            assert sample["queries"][step].values.tolist() == [labels.count(name) for name in names]
            for group, name in enumerate(names):
                rows = [row for row, label in enumerate(labels) if label == name]
                mean = made.maps.mean(1)[:, rows].mean(1) if rows else torch.zeros_like(made.maps[:, 0, 0])
                close(sample["received_by_group"][step, :, group], mean)
        weights = sample["queries"] / sample["queries"].sum("group")
        whole = (weights * sample["received_by_group"]).sum("group").transpose("step", "layer", "position")
        np.testing.assert_allclose(whole.values, sample["received"].mean("head").values, atol=CLOSE, rtol=CLOSE)


@each_family
@pytest.mark.parametrize("way", ["whole canvas", "prefix cache", "dual cache"])
def test_maps_are_those_of_the_chosen_steps_layers_and_heads(
    recorded: Callable[[str, str], Recorded], folder: str, way: str
) -> None:
    model, trace = recorded(folder, way)
    sample = trace[0].load()
    passes = passes_of(model.network, sample, torch.from_numpy(sample["canvas"].values).long())
    assert sample["map_step"].values.tolist() == [0, 3]
    for step in (0, 3):
        for layer in (0, 2):
            for head in (1, 3):
                found = sample["attention"].sel(map_step=step, map_layer=layer, map_head=head)
                fed = slice(passes[step].first, passes[step].last)
                close(found[fed], passes[step].maps[layer, head])
                assert int(found.isnull().all("position").sum()) == sample.sizes["query"] - (fed.stop - fed.start)


@each_family
@pytest.mark.parametrize("way", ["guided", "guided dual cache"])
def test_the_halves_of_guidance_are_kept_apart(recorded: Callable[[str, str], Recorded], folder: str, way: str) -> None:
    model, trace = recorded(folder, way)
    for number, prompt in enumerate(PROMPTS):
        sample = trace[number].load()
        blind = torch.from_numpy(sample["canvas"].values).long()
        blind[:, : len(prompt)] = MASK
        for step, made in enumerate(passes_of(model.network, sample, blind)):
            close(sample["received_unconditional"][step], made.received)
        assert float(abs(sample["received_unconditional"] - sample["received"]).max()) > 0.01


@each_family
@each_way
def test_the_record_of_the_canvas_follows_generate(
    recorded: Callable[[str, str], Recorded], folder: str, way: str
) -> None:
    model, trace = recorded(folder, way)
    result = generate(model, PROMPTS, WAYS[way], history=True)
    assert result.history is not None
    for number, prompt in enumerate(PROMPTS):
        sample, padding = trace[number].load(), 7 - len(prompt)
        after = np.array([canvas[number, padding:].tolist() for canvas in result.history])
        canvas, committed = sample["canvas"].values, sample["committed"].values
        assert sample.attrs["steps"] == sample.sizes["step"] == len(after) == result.forward_passes
        assert canvas[0].tolist() == prompt + [MASK] * 6
        np.testing.assert_array_equal(canvas[1:], after[:-1])
        np.testing.assert_array_equal(committed, canvas != after)
        np.testing.assert_array_equal(sample["confidence"].notnull().values, committed)
        assert sample["sequence"].values.tolist() == after[-1].tolist()
        length = WAYS[way].block_length or 6
        np.testing.assert_array_equal(sample["block_start"], len(prompt) + sample["block"] * length)
        np.testing.assert_array_equal(sample["block_stop"], sample["block_start"] + length)
        places = np.arange(len(prompt) + 6)
        inside = places < sample["block_stop"].values[:, None]
        assert not committed[~inside].any()
        close(sample["final_received"], passes_of(model.network, *_finished(sample))[0].received)


def _finished(sample: xarray.Dataset) -> tuple[xarray.Dataset, torch.Tensor]:
    whole = xarray.Dataset({"query_start": ("step", [0]), "query_stop": ("step", [sample.sizes["position"]])})
    return whole, torch.from_numpy(sample["sequence"].values).long()[None]


def test_rows_fed_are_those_of_the_cache(recorded: Callable[[str, str], Recorded]) -> None:
    for way, ends in (("prefix cache", 13), ("dual cache", 10)):
        sample = recorded("llada-tiny", way)[1][1]
        fed = list(zip(sample["query_start"].values.tolist(), sample["query_stop"].values.tolist(), strict=True))
        assert fed == [(0, 13), (7, ends), (7, ends), (0, 13), (10, 13), (10, 13)]


def test_masks_of_a_prompt_are_filled_and_recorded(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    model = tiny("llada-tiny")
    prompts = [[5, MASK, 9, MASK, 2], [MASK, 4, 8]]
    settings = Denoising(gen_length=0, block_length=None, steps=None)
    trace = record(model, prompts, settings, out=tmp_path / "t", recording=EVERYTHING_BUT_MAPS, batch_size=2)
    for sample in (one.load() for one in trace):
        passes = passes_of(model.network, sample, torch.from_numpy(sample["canvas"].values).long())
        for step, made in enumerate(passes):
            close(sample["received"][step], made.received)
        first = sample["queries"].isel(step=0).to_series()
        assert first["block-masked"] == int((sample["canvas"][0] == MASK).sum()) > 0
        assert first["prompt"] == int((sample["canvas"][0] != MASK).sum())
        assert MASK not in sample["sequence"].values


def test_an_autoregressive_sample_ends_with_its_own_row(ending: Model, tmp_path: Path) -> None:
    trace = record(ending, PROMPTS, ENDING, out=tmp_path / "t", recording=EVERYTHING_BUT_MAPS, batch_size=3)
    lengths = []
    for number, prompt in enumerate(PROMPTS):
        sample, alone = trace[number].load(), generate(ending, prompt, ENDING).sequences[0].tolist()
        assert sample["sequence"].values.tolist() == alone
        steps = sample.sizes["step"]
        lengths.append(steps)
        assert sample.attrs["steps"] == steps == len(alone) - len(prompt)
        assert sample.sizes["position"] == len(alone)
        maps = causal_maps(ending.network, alone)
        close(sample["final_received"], maps.mean(2))
        for step in range(steps):
            keys = len(prompt) + step
            queries = slice(0, keys) if step == 0 else slice(keys - 1, keys)
            close(sample["received"][step, :, :, :keys], maps[:, :, queries, :keys].mean(2))
            for name in ("received", "key_norm", "value_norm"):
                assert bool(sample[name][step, ..., keys:].isnull().all())
            assert bool(sample["entropy"][step, :, :, : queries.start].isnull().all())
            assert sample["canvas"][step].values.tolist() == alone[:keys] + [-1] * (len(alone) - keys)
            assert sample["committed"][step].values.nonzero()[0].tolist() == [keys]
            assert sample["confidence"][step].notnull().values.nonzero()[0].tolist() == [keys]
            assert (int(sample["query_start"][step]), int(sample["query_stop"][step])) == (queries.start, keys)
            asked = {name: int(count) for name, count in sample["queries"][step].to_series().items() if count}
            assert asked == ({"prompt": keys} if step == 0 else {"committed": 1})
    assert lengths[0] == 3
    assert max(lengths) == 9


@pytest.mark.parametrize("kind", ["llada", "dual", "causal"])
def test_batches_agree_to_rounding_and_give_the_same_tokens(
    tiny: Callable[[str], Model], ending: Model, tmp_path: Path, kind: str
) -> None:
    model = ending if kind == "causal" else tiny("llada-tiny")
    settings = ENDING if kind == "causal" else WAYS["dual cache" if kind == "dual" else "sampled"]
    exact = Recording(precision="float32")  # rounding would give back what it took to another key
    one, three = (
        record(model, PROMPTS, settings, out=tmp_path / str(n), batch_size=n, recording=exact) for n in (1, 3)
    )
    for single, together in zip(one, three, strict=True):
        for name in ("canvas", "committed", "block", "query_start", "query_stop", "queries", "sequence"):
            xarray.testing.assert_identical(single[name].drop_attrs(), together[name].drop_attrs())
        for name in ("received", "received_by_group", "final_received"):
            left, right = (sample[name].values.astype(np.float64) for sample in (single, together))
            np.testing.assert_array_equal(np.isnan(left), np.isnan(right))
            # float32 passes that add up in another order: each, and SDPA's own, is up to 8e-6 from float64 here
            np.testing.assert_allclose(left, right, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", ["llada", "dream", "causal"])
def test_outputs_of_heads_are_those_of_the_final_pass(
    tiny: Callable[[str], Model], ending: Model, tmp_path: Path, kind: str
) -> None:
    model = ending if kind == "causal" else tiny(f"{kind}-tiny")
    settings = ENDING if kind == "causal" else WAYS["prefix cache"]
    trace = record(model, PROMPTS, settings, out=tmp_path / "t", recording=Recording(kinds=True), batch_size=3)
    for sample in (one.load() for one in trace):
        maps, values = _maps_and_values(model, sample)
        outputs = maps @ values  # (layer, head, query, dim), float64
        sizes = np.linalg.norm(outputs, axis=-1)
        through = np.einsum("lhqk,lhkd,lhqd->lhqk", maps, values, outputs)
        wanted = {
            "value_norm": np.linalg.norm(values, axis=-1),
            "norm_share": (maps / sizes[..., None]).mean(2) * np.linalg.norm(values, axis=-1),
            "output_share": (through / sizes[..., None] ** 2).mean(2),
            "output_norm": sizes.mean(-1),
            "rank": _stable_ranks(outputs),
        }
        top = maps.mean(2).argmax(-1)
        np.testing.assert_array_equal(sample["final_top"], top)
        lone = np.zeros_like(maps)
        np.put_along_axis(lone, top[..., None, None].repeat(maps.shape[2], 2), 1.0, axis=-1)
        wanted["rank_without_top"] = _stable_ranks((maps * (1 - lone)) @ values)
        for name, numbers in wanted.items():
            np.testing.assert_allclose(sample[f"final_{name}"], numbers, atol=CLOSE, rtol=CLOSE, err_msg=name)
        assert bool((sample["final_rank_without_other"] >= 1 - CLOSE).all())


def _stable_ranks(outputs: NDArray[np.float64]) -> NDArray[np.float64]:
    sizes = np.linalg.svd(outputs, compute_uv=False)
    ranks: NDArray[np.float64] = (sizes**2).sum(-1) / sizes[..., 0] ** 2
    return ranks


def _maps_and_values(model: Model, sample: xarray.Dataset) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eager maps (layer, head, query, key) of the finished sequence, and the values that each head reads (layer, head,
    key, dim), from what the layers' value projections gave."""
    network, seen = model.network, list[torch.Tensor]()
    hooks = [
        one.register_forward_hook(lambda _, __, output: seen.append(output[0].double()))
        for name, one in network.named_modules()
        if name.endswith("v_proj")
    ]
    if model.family.bidirectional:
        maps = passes_of(network, *_finished(sample))[0].maps
    else:
        maps = causal_maps(network, sample["sequence"].values.tolist())
    for hook in hooks:
        hook.remove()
    shape = model.shape
    stacked: Any = torch.stack(seen)
    values = stacked.unflatten(-1, (shape.kv_heads, -1)).transpose(1, 2)
    return maps.double().numpy(), values.repeat_interleave(shape.heads // shape.kv_heads, dim=1).numpy()


def test_only_what_was_asked_for_is_kept(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    model = tiny("llada-tiny")
    bare = record(model, PROMPTS[0], SHORT, out=tmp_path / "bare", recording=Recording(by_group=None, final=False))[0]
    optional = {"received_by_group", "key_norm", "value_norm", "entropy", "attention", "final_received"}
    assert not optional & set(bare.variables)
    heads = record(model, PROMPTS[0], SHORT, out=tmp_path / "heads", recording=Recording(by_group="heads"))[0]
    assert [name for name in heads if str(name).startswith("final_")] == ["final_received"]
    assert heads["received_by_group"].dims == ("step", "layer", "group", "head", "position")
    weights = heads["queries"] / heads["queries"].sum("group")
    whole = (weights * heads["received_by_group"]).sum("group").transpose(*heads["received"].dims)
    np.testing.assert_allclose(whole.values, heads["received"].values, atol=1e-3)


def test_a_trace_says_how_it_was_made(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    trace = record(tiny("dream-tiny"), PROMPTS, replace(SHORT, seed=4), out=tmp_path / "t", batch_size=2)
    assert trace.ids == trace.complete_ids == ("0", "1", "2")
    model, decoding = trace.attrs["model"], dict(trace.attrs["decoding"])
    assert (model["family"], model["mask_token_id"], model["logit_shift"]) == ("dream", MASK, True)
    assert (model["layers"], model["heads"], model["kv_heads"], model["dtype"]) == (3, 4, 2, "float32")
    assert decoding.pop("kind") == "denoising"
    assert Denoising(**decoding) == replace(SHORT, seed=4)
    assert trace.attrs["recording"]["batch_size"] == 2
    assert {"sinkscope", "torch", "transformers", "zarr"} <= set(trace.attrs["versions"])
    assert trace[1].attrs["prompt_length"] == 7
    assert trace[1].attrs["complete"] is True
    assert trace[1].attrs["text"] is None


def test_a_row_that_is_done_early_has_the_steps_it_has_alone(tiny: Callable[[str], Model], tmp_path: Path) -> None:
    model = tiny("llada-tiny")
    prompts = [[7, MASK, MASK, MASK, MASK, 3], [4, MASK, 9]]
    maps = Recording(maps=Maps(steps=(0,), layers=(1,), heads=(0,)))
    for name, way in {
        "filled": Denoising(gen_length=0, block_length=None, steps=None),
        "threshold": Denoising(gen_length=4, block_length=2, steps=4, threshold=0.3),
    }.items():
        together = record(model, prompts, way, out=tmp_path / name, batch_size=2, recording=maps)
        for number, prompt in enumerate(prompts):
            alone = record(model, [prompt], way, out=tmp_path / f"{name}{number}", recording=maps)[0]
            assert together[number].sizes == alone.sizes
            np.testing.assert_array_equal(together[number]["canvas"], alone["canvas"])
            np.testing.assert_allclose(
                together[number]["received"].values.astype(np.float64),
                alone["received"].values.astype(np.float64),
                atol=1e-3,
            )


def test_what_cannot_be_recorded_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = Lfm2Config(
        hidden_size=48, intermediate_size=71, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=101, layer_types=["conv", "full_attention", "conv"], max_position_embeddings=64, pad_token_id=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    Lfm2ForCausalLM(config).save_pretrained(tmp_path / "model")
    model = load_model(tmp_path / "model", device="cpu")
    untried = replace(model, seen_shape=None)  # made without `load_model`
    with pytest.raises(UserError, match=r"attends with \[6\] heads by layer where \[6, 6, 6\] are known .* load_model"):
        record(untried, [[5, 6]], Decoding(max_new_tokens=2), out=tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_recording_options_are_checked() -> None:
    with pytest.raises(UserError, match="unknown precision 'bf16'; choose rounded or float32"):
        Recording(precision="bf16")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="unknown by_group 'x'"):
        Recording(by_group="x")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="told from the final pass"):
        Recording(final=False, kinds=True)
