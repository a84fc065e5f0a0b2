"""Make the pictures of docs/figures anew, with commands as docs/how-to/draw-figures.md shows them.

    python docs/make_figures.py

Traces and cells go to runs/figures, what is there already is replaced. It takes a few minutes. The same traces give the
same files, byte for byte.
"""

import json
import shutil
from pathlib import Path

from commands import sinkscope

RUNS = Path("runs/figures")
PICTURES = Path("docs/figures")
PROBLEMS = {
    "list": "Copy the list: a d f g k m =>",
    "passkey": "Ann has the ball. The passkey is 315. Bo has the cup. What is the passkey? =>",
}
TWINS = ("twin-ar", "twin-dlm", "twin-adapted")


def main() -> None:
    """Run all commands; the first that fails ends it."""
    shutil.rmtree(RUNS, ignore_errors=True)
    RUNS.mkdir(parents=True)
    problems = RUNS / "problems.jsonl"
    problems.write_text("".join(json.dumps({"id": name, "prompt": text}) + "\n" for name, text in PROBLEMS.items()))
    sinkscope(f"trace twin-ar --prompts {problems} --max-new-tokens 12 --out {RUNS}/ar.zarr")
    sinkscope(
        f"trace twin-dlm --prompts {problems} --gen-length 12 --block-length 4 --map-steps 2,3 --out {RUNS}/dlm.zarr"
    )
    sinkscope(
        "ablate twin-ar twin-dlm --task passkey --strongest 1,2,5 --rule first:1 --control random,equal-mass,lowest "
        f"--n 100 --out {RUNS}/grid"
    )
    logs = " ".join(f"--log {name}" for name in TWINS)
    sinkscope(
        f"figures {RUNS}/ar.zarr {RUNS}/dlm.zarr --ablation {RUNS}/grid {logs} --out {PICTURES}/twins --overwrite"
    )
    sky = RUNS / "sky.jsonl"
    sky.write_text(json.dumps({"id": "sky", "messages": [{"role": "user", "content": "Why is the sky blue?"}]}) + "\n")
    sinkscope(f"trace smollm2-135m --prompts {sky} --max-new-tokens 24 --kinds --out {RUNS}/kinds.zarr")
    sinkscope(f"figures {RUNS}/kinds.zarr --only sink-kinds --out {PICTURES}/real --overwrite")
    sinkscope(f"demo --real --out {RUNS}/real")
    sinkscope(
        f"figures {RUNS}/real/smollm2-135m.zarr {RUNS}/real/rxnmapper.zarr --sample question-0 --sample amide "
        f"--rule top-k --only heat-map --out {PICTURES}/real --overwrite"
    )


if __name__ == "__main__":
    main()
