"""`sinkscope ablate`: a grid at the command line, and masking in `generate` and `trace`."""

import json
from pathlib import Path

import pytest
from cli_runs import Command

from sinkscope.decoding import Denoising, generate
from sinkscope.families import load_model
from sinkscope.interventions import MaskSinks
from sinkscope.trace import open_trace


@pytest.fixture
def twin(twin_folders: dict[str, Path]) -> Path:
    """An untrained diffusion twin."""
    return twin_folders["twin-dlm"]


def test_a_grid_is_run_kept_and_taken_up_again(sinkscope: Command, twin: Path, tmp_path: Path) -> None:
    options = "--task copy --n 4 --room 24 --top-k 0,2 --epsilon 2 --first 1 --control random,lowest"
    given = ("ablate", twin, *options.split(), "--out", tmp_path / "grid")
    found = sinkscope(*given, "--json").document
    assert [(cell["keys"], cell["masked"]) for cell in found["cells"]] == [
        ("none", "plain"),
        *[
            (keys, masked)
            for keys in ("top-2", "first 1", "excess 2.0 sum")
            for masked in ("sinks", "random", "lowest")
        ],
    ]
    assert found["cells"][1]["keys_cut"] == pytest.approx(2)
    assert len(found["contrasts"]) == 6 and len(found["verdicts"]) == 3
    again = sinkscope(*given, "--resume", "--json").document
    assert again == found  # the very cells, their times included
    assert "holds cells already" in sinkscope(*given).mistake
    names = {file.name for file in (tmp_path / "grid").iterdir()}
    assert names == {"cells.jsonl", "table.md", "table.csv"}
    assert (tmp_path / "grid" / "table.md").read_text().count("| top-2 |") == 3


def test_the_table_ends_with_what_it_says(sinkscope: Command, twin: Path) -> None:
    text = sinkscope(
        "ablate", twin, "--task", "sort", "--n", 2, "--room", 24, "--top-k", "1", "--control", "lowest"
    ).table
    assert "top-1" in text and "lowest" in text
    assert text.splitlines()[-1].startswith(f"{twin}, sort, top-1: ")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--task", "copy", "--top-k", "one"), "--top-k takes whole numbers"),
        (("--task", "copy", "--top-k", "-3"), "must be at least 0"),
        (("--task", "copy", "--top-k", "0"), "nothing is masked in this grid"),
        (("--task", "copy", "--top-k", "999", "--n", "2", "--room", "24"), "999 keys can't be masked"),
        (("--task", "copy", "--first", "0"), "k of rule 'first'"),
        (("--task", "copy", "--epsilon", "many"), "--epsilon takes numbers"),
        (("--task", "copy", "--epsilon", "3", "--scale", "mean"), "can never fire"),
        (("--task", "copy", "--epsilon", "500", "--n", "2", "--room", "24"), "can never fire"),
        (("--task", "copy", "--control", "none,random"), "unknown control 'none'"),
        (("--task", "copy", "--control", "random,"), "--control takes names"),
        (("--task", "copy", "--mask-layers", "9", "--n", "2", "--room", "24"), "no layer 9"),
        (("--task", "copy", "--mask-queries", "nobody"), "unknown group of queries 'nobody'"),
        (
            (
                "--task",
                "chess",
            ),
            "unknown task 'chess'",
        ),
        (("--task", "copy", "--resume"), "--resume needs --out"),
    ],
)
def test_mistakes_are_one_line(sinkscope: Command, twin: Path, wrong: tuple[str, ...], said: str) -> None:
    assert said in sinkscope("ablate", twin, *wrong).mistake


def test_a_control_that_needs_masks_is_refused_for_a_model_without(
    sinkscope: Command, twin_folders: dict[str, Path]
) -> None:
    given = ("--task", "copy", "--n", 2, "--room", 24, "--control", "mask-matched", "--top-k", 1)
    assert "needs mask tokens" in sinkscope("ablate", twin_folders["twin-ar"], *given).mistake


def test_generate_and_trace_mask_too(sinkscope: Command, twin: Path, tmp_path: Path) -> None:
    given = ("--prompt", "Copy the list: a d =>", "--gen-length", 4, "--mask-top-k", 3, "--mask-control", "random")
    found = sinkscope("generate", twin, *given, "--json").document
    model = load_model(twin, device="cpu")
    wanted = MaskSinks(3, control="random")
    done = generate(
        model, "Copy the list: a d =>", Denoising(gen_length=4, block_length=4, steps=None), intervention=wanted
    )
    assert found["results"][0]["sequence"] == done.sequences[0].tolist()
    assert done.removed is not None
    assert found["results"][0]["removed"] == done.removed.to_dict()
    assert found["intervention"] == json.loads(json.dumps(wanted.to_dict()))
    sinkscope("trace", twin, *given, "--out", tmp_path / "masked.zarr")
    assert open_trace(tmp_path / "masked.zarr").attrs["intervention"] == found["intervention"]
    assert (
        "--mask-control lowest needs --mask-top-k"
        in sinkscope("generate", twin, "--prompt", "a", "--mask-control", "lowest").mistake
    )
