"""Trainings of the laboratory: they learn, are reproducible, are kept on the grid; and what is said of them."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sinkscope.cli.main import run
from sinkscope.errors import UserError
from sinkscope.evaluation.chain_measures import BACK_COPY, RECALL, first_symbol, learnt_chains
from sinkscope.evaluation.conditions import KeysCondition
from sinkscope.evaluation.inputs import Examples
from sinkscope.evaluation.measures import find_measure
from sinkscope.evaluation.measuring import MeasureOptions
from sinkscope.evaluation.tasks import examples, find_task
from sinkscope.families import Model, load_model
from sinkscope.grids import Keeping
from sinkscope.lab.measuring import HIDDEN, SHARES, LabMeasure, measure, passes
from sinkscope.lab.recipe import LabRecipe, lab_recipe
from sinkscope.lab.studies import STUDIES, findings, read_lab, recipes, run_lab, verdicts
from sinkscope.lab.training import train
from sinkscope.language.chains import CHAIN_WORDS, Chains

LITTLE = {"width": 32, "layers": 2, "steps": 12, "rows": 8, "adapted_steps": 4, "warm_up": 2}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A laboratory of two recipes, three objectives and three seeds, with the networks of the first recipe."""
    out = tmp_path_factory.mktemp("lab") / "kept"
    given = [word for name, value in LITTLE.items() for word in ("--set", f"{name}={value}")]
    objectives = ["--objective", "next-token,masked-diffusion,adapted,joint"]
    assert run(["lab", *given, *objectives, "--limit", "8", "--out", str(out), "--keep-models", "--json"]) == 0
    more = ["--vary", 'attention="gated"', "--objective", "next-token"]
    assert run(["lab", *given, *more, "--limit", "8", "--out", str(out), "--resume"]) == 0
    return out


@pytest.fixture(scope="module")
def writer(kept: Path) -> Model:
    """A network of the laboratory, opened as any other model."""
    return load_model(kept / "models" / _folder("masked-diffusion"), dtype="float32", device="cpu")


def _folder(objective: str, seed: int = 0) -> str:
    changed = "-".join(f"{name}-{LITTLE[name]}" for name in vars(LabRecipe()) if name in LITTLE)
    return f"{objective}-{changed}-seed-{seed}"


@pytest.mark.parametrize("objective", ["next-token", "masked-diffusion", "adapted", "joint"])
def test_a_training_learns_and_its_seed_decides_it(objective: str) -> None:
    recipe = lab_recipe({**LITTLE, "objective": objective})
    losses: list[float] = []
    train(replace(recipe, steps=60), observer=lambda _, __, loss: losses.append(loss))
    assert sum(losses[-10:]) < sum(losses[:10])
    network, again, other = train(recipe), train(recipe), train(replace(recipe, seed=1))
    tokens = recipe.chains.sample(2, 16, torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(network(tokens), again(tokens))
        assert not torch.equal(network(tokens), other(tokens))


@pytest.mark.parametrize("objective", ["next-token", "masked-diffusion", "adapted", "joint"])
def test_the_loss_that_is_measured_is_that_of_the_exported_network(kept: Path, objective: str) -> None:
    # The folder holds float16 weights: relative error 2^-11 of each, so losses agree to about a hundredth.
    cells = {
        (str(cell.condition.objective), cell.condition.seed): cell
        for cell in read_lab(kept)
        if cell.condition.attention == "softmax"
    }
    cell = cells[objective, 0]
    folder = kept / "models" / _folder(objective)
    model = load_model(folder, dtype="float32", device="cpu")
    assert learnt_chains(model) == cell.condition.chains
    tokens = cell.condition.chains.sample(8, 32, torch.Generator().manual_seed(20_261_129))
    for one in passes(cell.condition, tokens):
        with torch.no_grad():
            sees = torch.ones(32, 32, dtype=torch.bool).tril() if one.block_length == 1 else torch.ones(32, 32).bool()
            logits = model.network(one.fed, attention_mask=sees[None, None], use_cache=False).logits
        if one.shift:
            logits = torch.cat([logits[:, :1], logits[:, :-1]], 1)
        chance = logits.double().log_softmax(-1).gather(-1, one.tokens[..., None])[..., 0]
        assert float(-chance[one.wanted].mean()) == pytest.approx(cell.stats[one.name]["loss"], abs=0.02)


def test_shares_of_masks_are_nested_moments_of_one_denoising() -> None:
    recipe = lab_recipe({**LITTLE, "objective": "masked-diffusion"})
    made = passes(recipe, recipe.chains.sample(5, 32, torch.Generator().manual_seed(0)))
    for share, one, after in zip(SHARES, made, made[1:], strict=False):
        assert int(one.wanted.sum(1)[0]) == round(share * 31)
        assert bool((after.wanted | ~one.wanted).all())


def test_what_is_hidden_is_what_its_name_says() -> None:
    recipe = lab_recipe({**LITTLE, "steps": 30})
    found = measure(train(recipe), recipe, 16).stats["text"]["hidden"]
    assert tuple(found) == HIDDEN
    assert found["nothing"]["keys"] == 0
    assert found["first"]["keys"] == found["strongest"]["keys"] == found["random"]["keys"] == 1
    assert found["equal-mass"]["removed"] == pytest.approx(found["strongest"]["removed"], abs=0.05)
    assert found["strongest"]["removed"] >= found["random"]["removed"]


def test_a_laboratory_goes_on_and_its_findings_are_means_over_seeds(kept: Path) -> None:
    cells = read_lab(kept)
    assert len(cells) == 15
    before = (kept / "cells.jsonl").read_bytes()
    asked = recipes([], objectives=["next-token"], seeds=[0, 1, 2], base=LITTLE)
    again = run_lab(asked, Keeping(out=kept, resume=True), measure=LabMeasure(n=8))
    assert (kept / "cells.jsonl").read_bytes() == before
    [found] = findings(again)
    losses = [cell.stats["text"]["loss"] for cell in again]
    assert found.seeds == 3
    assert found.values["loss"].mean == pytest.approx(sum(losses) / 3)
    assert (found.values["loss"].lowest, found.values["loss"].highest) == (min(losses), max(losses))
    assert "gated" in (kept / "table.md").read_text()
    assert len({one.where for one in findings(cells) if one.objective == "adapted"}) == len(SHARES)


def test_a_joint_network_is_measured_both_ways(kept: Path) -> None:
    [joint] = [cell for cell in read_lab(kept) if cell.condition.objective == "joint" and cell.condition.seed == 0]
    where = {one.where: one for one in findings([joint])}
    assert [*where] == ["text", *(f"masked {share:g}" for share in SHARES)]
    tokens = joint.condition.chains.sample(8, 32, torch.Generator().manual_seed(20_261_129))
    entropy = -float(joint.condition.chains.log_likelihood(tokens).sum()) / tokens[:, 1:].numel()
    assert where["text"].values["excess"].mean == pytest.approx(joint.stats["text"]["loss"] - entropy, abs=1e-5)
    shares = [joint.stats[f"masked {share:g}"]["loss"] - entropy for share in SHARES]
    assert where["masked 0.5"].values["excess"].mean == pytest.approx(sum(shares) / len(shares), abs=1e-5)


def test_every_study_is_made_of_recipes_that_can_be() -> None:
    made = recipes(list(STUDIES), objectives=["next-token", "masked-diffusion"], seeds=[0])
    assert len(made) == 2 * (1 + sum(map(len, STUDIES.values())))


def test_a_figure_is_drawn_of_it(kept: Path, tmp_path: Path) -> None:
    assert run(["figures", "--lab", str(kept), "--only", "lab", "--format", "png", "--out", str(tmp_path / "f")]) == 0
    assert (tmp_path / "f" / "lab.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "wdth=3"], "wdth"),
        (["--set", "width=33"], "width"),
        (["--study", "cooking"], "cooking"),
        (["--objective", "sideways"], "sideways"),
        (["--keep-models"], "--out"),
        (["--keep-models", "--vary", 'attention="gated"'], "gated"),
        (["--vary", "{nonsense"], "--vary"),
        (["--vary", "{" + '"layers":[' * 4000], "--vary"),
        (["--vary", "seed=7"], "--seeds"),
        (["--set", 'objective="adapted"'], "--objective"),
        (["--seeds", "18446744073709"], "seed"),
        (["--vary", "layers=1000000000000"], "layers"),
        (["--vary", "other_rate=1e38"], "other_rate"),
        (["--vary", "sparsity=1e-9"], "sparsity"),
        (["--device", "abacus"], "abacus"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = [] if said == "--out" else ["--out", str(tmp_path / "lab")]
    assert run(["lab", *words, *out]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize("name", [BACK_COPY, RECALL])
def test_the_answers_of_the_exact_tasks_are_certain(name: str) -> None:
    chains, triggers = Chains(), {"back-copy": "12", "recall": "34"}[name]
    for one in examples(find_task(name), 50, seed=3):
        words = one.prompt.split()
        assert words[-1] in triggers
        if name == BACK_COPY:
            assert one.answer == words[-2]
        else:
            assert one.answer == words[max(place for place, word in enumerate(words[:-1]) if word == words[-1]) + 1]
        tokens = torch.tensor([[0, *(CHAIN_WORDS.index(word) for word in (*words, one.answer))]])
        assert chains.log_likelihood(tokens)[0, -1] > -0.02
    assert first_symbol("a", "a b c")
    assert not first_symbol("a", "b a")


def test_writing_is_scored_by_the_chain_itself(writer: Model) -> None:
    measure = find_measure("chain-writing", MeasureOptions(examples=Examples(n=6, batch_size=4)))(writer)
    found = measure.run(KeysCondition(), lambda _: None).outcome
    # An untrained model writes evenly, special tokens now and then: worse than even, better than the worst there is.
    assert -9 < found.score < -3
    again = measure.run(KeysCondition(), lambda _: None).outcome
    assert found.score == again.score


def test_writing_asks_for_a_model_of_chains(twin_folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="learnt no chains"):
        find_measure("chain-writing", MeasureOptions())(load_model(twin_folders["twin-ar"]))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"share": "half"}, r"share got 'half', wanted a number such as 0\.5"),
        ({"seed": 1.0}, r"seed got 1\.0, wanted a whole number such as 1"),
        ({"noise": 2}, r"noise must lie between 0 and 1, got 2\.0"),
        ({"others": 1}, r"the fields back, recall, .* were wanted"),
    ],
)
def test_chains_that_cannot_be_are_told_with_their_model(writer: Model, changed: dict[str, object], said: str) -> None:
    told = {"sinkscope": {"chains": {**asdict(Chains()), **changed}}}
    model = replace(writer, network=SimpleNamespace(config=SimpleNamespace(**told)))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=rf"{model.name}: config\.json tells of chains .* \({said}\); write the folder"):
        learnt_chains(model)


def test_the_recipe_of_an_exported_network_makes_it_again(kept: Path) -> None:
    stored = json.loads((kept / "models" / _folder("adapted") / "recipe.json").read_text())
    assert lab_recipe(stored) == lab_recipe({**LITTLE, "objective": "adapted"})


def test_a_seed_counts_once_and_others_are_told_from_the_fewest_changes(tmp_path: Path) -> None:
    given = [word for name, value in LITTLE.items() for word in ("--set", f"{name}={value}")]
    lab = ["lab", *given, "--objective", "next-token", "--seeds", "0", "--out", str(tmp_path / "lab"), "--json"]
    assert run([*lab, "--set", "registers=1", "--limit", "4"]) == 0
    assert run([*lab, "--limit", "4", "--resume"]) == 0
    assert run([*lab, "--limit", "6", "--resume"]) == 0  # the same training, measured on other contexts
    found = findings(read_lab(tmp_path / "lab"))
    assert [one.seeds for one in found] == [1, 1, 1]
    assert found[0].recipe.registers == 0
    [said] = verdicts(found)
    assert "registers 1" in said.split(":")[0]


def test_tasks_of_chains_refuse_a_model_of_other_chains(kept: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(kept / "models" / _folder("next-token"), folder)
    config = json.loads((folder / "config.json").read_text())
    for chains, said in (
        ({**config["sinkscope"]["chains"], "back": 1}, "back=1"),
        ({**config["sinkscope"]["chains"], "documents": 2}, "2 walks"),
        ({**config["sinkscope"]["chains"], "back": "2"}, "can't be"),
        ({"back": 2}, "can't be"),
    ):
        (folder / "config.json").write_text(
            json.dumps({**config, "sinkscope": {**config["sinkscope"], "chains": chains}})
        )
        with pytest.raises(UserError, match=said):
            find_measure(BACK_COPY, MeasureOptions())(load_model(folder))


@pytest.mark.parametrize("name", [BACK_COPY, RECALL])
def test_prompts_that_are_too_short_for_a_trigger_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="allow more tokens"):
        examples(find_task(name), 1, max_example_tokens=3)
