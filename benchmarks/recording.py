"""What recording a trace costs, and what its options add: whole generations in time and in memory (see
`generations.py`).

    python benchmarks/recording.py                                  # the table of docs/results/costs.md
    python benchmarks/recording.py --lengths 128 --batch 1 --steps 32

The final pass is made once a sample, and `kinds` is measured in it alone: the more steps a generation has, the less it
adds.
"""

import tempfile
from pathlib import Path

import torch
from generations import Way, compare

from sinkscope.decoding import Denoising
from sinkscope.families import Model
from sinkscope.trace import Recording, record


def recorded(recording: Recording) -> Way:
    """A generation that is written to disk."""

    def way(model: Model, prompts: torch.Tensor, settings: Denoising) -> None:
        with tempfile.TemporaryDirectory() as folder:
            record(
                model, prompts.tolist(), settings, out=Path(folder) / "trace.zarr", recording=recording,
                batch_size=len(prompts),
            )  # fmt: skip

    return way


WAYS: dict[str, Way] = {
    "recorded": recorded(Recording()),
    "without the final pass": recorded(Recording(final=False)),
    "with kinds": recorded(Recording(kinds=True)),
    "with norms and entropy": recorded(Recording(norms=True, entropy=True)),
}


if __name__ == "__main__":
    compare(__doc__, WAYS, lengths=[256, 1024], dtypes=["float32"])
