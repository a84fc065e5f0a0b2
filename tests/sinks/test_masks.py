"""One network under several masks: against float64 eager attention under a mask written here; chance by hand."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sinkscope.cli.main import run
from sinkscope.decoding import Decoding, Denoising, generate
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model
from sinkscope.report import figures
from sinkscope.sinks import compare_masks, mask_name
from sinkscope.trace import Recording, Trace, open_trace, read_prompts, record

READ = Denoising(gen_length=0, steps=0, block_length=None)
LENGTHS = (1, 5, None)
SIZE = 27
"""No multiple of a block."""


def joint(length: int | None) -> Model:
    return load_model("chain-joint", dtype="float32", device="cpu", block_length=length)


def texts(count: int = 3) -> list[list[int]]:
    return torch.cat([torch.zeros(count, 1, dtype=torch.long), torch.randint(3, 43, (count, SIZE - 1))], 1).tolist()


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same texts, read under every mask."""
    folder, prompts, paths = tmp_path_factory.mktemp("masks"), texts(), []
    for length in LENGTHS:
        path = folder / f"{length}.zarr"
        record(joint(length), prompts, READ, out=path, recording=Recording(kinds=True, norms=True))
        paths.append(path)
    return paths


def by_hand(model: Model, tokens: list[int], length: int | None) -> dict[str, np.ndarray]:
    """alpha (layer, head, key) and norms (layer, head, key) by transformers' own eager attention, float64."""
    network: Any = type(model.network)(copy.deepcopy(model.network.config))
    network.load_state_dict(model.network.state_dict())
    network = network.double().train(False)
    network.set_attn_implementation("eager")
    places = range(len(tokens))
    sees = torch.tensor([[length is None or key // length <= query // length for key in places] for query in places])
    made: dict[str, list[torch.Tensor]] = {"k_proj": [], "v_proj": []}
    for layer in network.model.layers:
        for name, found in made.items():
            getattr(layer.self_attn, name).register_forward_hook(lambda _, __, out, found=found: found.append(out))
    additive = torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, -1e300)[None, None]
    with torch.no_grad():
        maps = network(torch.tensor([tokens]), attention_mask=additive, output_attentions=True).attentions
    norms = {
        name: torch.stack(some)[:, 0].reshape(3, len(tokens), 4, 16).norm(dim=-1).mT.numpy()
        for name, some in made.items()
    }
    alpha = torch.stack(maps)[:, 0].sum(-2).numpy() / sees.sum(0).numpy()
    alpha[..., 4 * sees.sum(0).numpy() <= len(tokens)] = np.nan
    return {"alpha": alpha, **norms}


@pytest.mark.parametrize("number", range(len(LENGTHS)))
def test_what_is_compared_is_what_eager_attention_under_that_mask_gives(traces: list[Path], number: int) -> None:
    opened = [open_trace(path) for path in traces]
    found = compare_masks({path.stem: trace for path, trace in zip(traces, opened, strict=True)})
    row = found.isel(mask=number)
    every = [by_hand(joint(None), sample["sequence"].values.tolist(), LENGTHS[number]) for sample in opened[number]]
    top = np.stack([np.nanargmax(one["alpha"], -1) for one in every])  # (text, layer, head)
    received = np.stack([np.nanmax(one["alpha"], -1) for one in every])
    first = np.stack([one["alpha"][..., 0] for one in every])
    wanted = {
        "first": top == 0, "first_received": first, "sink_1": first > 0.3, "received": received,
        "strong": received > 0.3,
        **{
            f"{name}_norm": np.stack(
                [np.take_along_axis(one[part], at[..., None], -1)[..., 0] / np.median(one[part], -1)
                 for one, at in zip(every, top, strict=True)]
            )
            for name, part in (("key", "k_proj"), ("value", "v_proj"))
        },
    }  # fmt: skip
    for name, values in wanted.items():
        # float32 against float64: 1e-5 of a weight; no share lies within that of .3, nor two keys of each other
        np.testing.assert_allclose(row[name].values, values.mean(axis=(0, 2)), rtol=1e-4, atol=1e-5, err_msg=name)
    causal = [by_hand(joint(None), one["sequence"].values.tolist(), 1)["alpha"] for one in opened[0]]
    other = np.stack([np.nanargmax(alpha, -1) for alpha in causal])
    np.testing.assert_allclose(row["same"].values, (top == other).mean(axis=(0, 2)))
    profile = np.mean([one["alpha"].mean(axis=(0, 1)) for one in every], axis=0)
    np.testing.assert_allclose(row["profile"].values, profile, rtol=1e-4, atol=1e-6)


def test_masks_are_named_and_chance_is_that_of_the_mask(traces: list[Path], tmp_path: Path) -> None:
    assert [mask_name(open_trace(path)[0]) for path in traces] == ["causal", "blocks of 5", "whole canvas"]
    found = compare_masks({path.stem: open_trace(path) for path in traces})
    # What the first token receives of queries without a preference: the mean of 1 over the keys that each sees.
    places = np.arange(SIZE)
    sees = [places + 1, np.minimum((places // 5 + 1) * 5, SIZE), np.full(SIZE, SIZE)]
    for kind in ("random", "sharp"):
        # 200 maps: each a mean of 27 weights of spread below 1, so the standard error is below .014
        expected = [(1 / one).mean() for one in sees]
        np.testing.assert_allclose(found[f"first_received_{kind}"].values, expected, atol=0.05)
    # Two tokens, read causally: the second query pays u to the first, and alpha is (1 + u) / 2 against 1 - u.
    pair = record(joint(1), [[0, 5]], READ, out=tmp_path / "pair.zarr")
    two = compare_masks({"a": pair, "b": pair}).isel(mask=0)
    assert float(two["first_random"]) == pytest.approx(2 / 3, abs=0.15)  # u even in (0, 1): first from 1/3 on
    assert float(two["received_random"]) == pytest.approx(5 / 6, abs=0.05)
    assert float(two["first_sharp"]) == pytest.approx(1 / 2, abs=0.15) and float(two["received_sharp"]) == 1


def test_texts_of_ones_own_are_not_the_same(traces: list[Path], tmp_path: Path) -> None:
    settings = Denoising(gen_length=9, block_length=None, steps=None, cache="blocks")
    wrote = record(joint(5), [row[:6] for row in texts()], settings, out=tmp_path / "wrote.zarr")
    found = compare_masks({"read": open_trace(traces[0]), "wrote": wrote})
    assert bool((found["same"].sel(mask="read") == 1).all())
    assert bool(found["same"].sel(mask="wrote").isnull().all())
    assert bool(found["received"].notnull().all()) and bool(found["key_norm"].sel(mask="wrote").isnull().all())
    assert found["profile"].sel(mask="wrote").dropna("position").sizes["position"] <= wrote[0].sizes["position"]


def test_the_command_and_the_figure(traces: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = list(map(str, traces))
    assert run(["sinks", *words, "--masks"]) == 0
    assert "whole canvas" in capsys.readouterr().out
    assert run(["sinks", *words, "--masks", "--json"]) == 0
    assert '"blocks of 5"' in capsys.readouterr().out
    assert run(["figures", *words, "--only", "masks", "--format", "png", "--out", str(tmp_path / "f")]) == 0
    subjects, _ = figures.open_subjects(traces, figures.inputs.RULE, "all")
    drawn = figures.FIGURES["masks"].draw(figures.Inputs(subjects=subjects))
    found = compare_masks({path.stem: open_trace(path) for path in traces})
    line = drawn.axes[1].get_lines()[0]
    np.testing.assert_allclose(np.asarray(line.get_ydata()), found["received"].mean("layer").values)
    assert [str(one.get_label()) for one in drawn.axes[0].get_lines()] == ["causal", "blocks of 5", "whole canvas"]


def test_several_block_masks_are_one_band_from_the_lowest_to_the_highest(traces: list[Path], tmp_path: Path) -> None:
    record(joint(3), texts(), READ, out=tmp_path / "3.zarr")
    paths = [*traces, tmp_path / "3.zarr"]
    subjects, _ = figures.open_subjects(paths, figures.inputs.RULE, "all")
    ax = figures.FIGURES["masks"].draw(figures.Inputs(subjects=subjects)).axes[0]
    assert [str(one.get_label()) for one in ax.get_lines()] == ["causal", "whole canvas"]
    [band] = ax.collections
    assert band.get_label() == "blocks of 5, 3"
    found = compare_masks({path.stem: open_trace(path) for path in paths})
    profiles = found["profile"].sel(mask=["5", "3"]).values
    edges = {tuple(one) for one in np.round(np.asarray(band.get_paths()[0].vertices), 9).tolist()}
    known = np.flatnonzero(np.isfinite(profiles).any(0)).tolist()
    assert len(known) > SIZE // 2
    for place in known:
        for edge in (np.nanmin(profiles[:, place]), np.nanmax(profiles[:, place])):
            assert (place, round(float(edge), 9)) in edges


def other_weights(path: Path) -> Trace:
    model = load_model("chain-dlm", dtype="float32", device="cpu")
    return record(model, texts(1), READ, out=path)


def test_other_weights_and_lone_traces_are_refused_in_a_line(
    traces: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_weights(tmp_path / "other.zarr")
    with pytest.raises(UserError, match="b is of other weights than a"):
        compare_masks({"a": open_trace(traces[0]), "b": other})
    without = record(joint(5), texts(1), READ, out=tmp_path / "without.zarr", recording=Recording(final=False))
    with pytest.raises(UserError, match="has no final pass"):
        compare_masks({"a": open_trace(traces[0]), "b": without})
    for words, said in (
        ([str(traces[0]), str(tmp_path / "other.zarr"), "--masks"], "is of other weights than"),
        ([str(traces[0]), "--masks"], "name another trace"),
        ([*map(str, traces), "--masks", "--table", "layers"], "leave out --table"),
        ([*map(str, traces), "--masks", "--rule", "top-k:1", "--group", "prompt"], "leave out --rule, --group"),
    ):
        assert run(["sinks", *words]) == 2
        printed = capsys.readouterr()
        assert not printed.out and said in printed.err.replace("\n", " ") and "Traceback" not in printed.err


def test_a_text_that_was_read_is_as_it_was(traces: list[Path]) -> None:
    sample = open_trace(traces[1])[0]
    assert sample.sizes["step"] == 1 and not bool(sample["committed"].any())
    # two passes of one text, the first of them in float32 rounded for the store
    np.testing.assert_allclose(sample["received"].values[0], sample["final_received"].values, rtol=1e-5)
    prompts = read_prompts(traces[1])
    assert [one.id for one in prompts] == ["0", "1", "2"]
    assert prompts[0].content == sample["sequence"].values.tolist()
    again = generate(joint(5), [prompts[0].content, prompts[2].content], READ)
    assert again.sequences.tolist() == [prompts[0].content, prompts[2].content] and again.forward_passes == 1


@pytest.mark.parametrize("length", [1, 4, None])
def test_only_finished_texts_are_read(length: int | None) -> None:
    with pytest.raises(UserError, match=r"holds the mask token <mask>, and .* reads it"):
        generate(joint(length), [[0, 1, 5]], READ)


def test_in_blocks_of_one_token_a_network_of_next_tokens_writes_as_it_was_made() -> None:
    prompts = torch.randint(3, 43, (3, 7)).tolist()
    usual = generate(load_model("chain-ar", device="cpu"), prompts, Decoding(max_new_tokens=20))
    model = load_model("chain-ar", device="cpu", block_length=1)
    settings = Denoising(gen_length=20, block_length=None, steps=None, cache="blocks")
    assert torch.equal(generate(model, prompts, settings).sequences, usual.sequences)
    with pytest.raises(UserError, match="use cache='blocks'"):
        generate(model, prompts, Denoising(gen_length=20, block_length=None, steps=None))
