"""Size on disk and time of one trace sample at LLaDA-8B's counts: 128 steps, 165 positions, 32 layers x 32 heads.

    python benchmarks/trace_size.py

The model has that many layers and heads but is narrow, so the time is mostly that of recording, not of the model. Its
attention is sharpened to look like a trained model's: uniform attention would compress to nothing. Printed per
precision: seconds with and without recording, and the size of the sample.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Literal

import torch
from random_models import VOCABULARY, random_dlm

from sinkscope.decoding import Denoising, generate
from sinkscope.trace import Recording, record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = random_dlm(layers=32, width=256, heads=32, hidden=256, dtype=torch.float32)
    for name, parameter in model.network.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            parameter.data.mul_(6)
    settings = Denoising(gen_length=128, block_length=32, steps=128)
    prompt = torch.randint(1, VOCABULARY - 1, (37,)).tolist()
    folder = Path(tempfile.mkdtemp())
    precisions: tuple[Literal["rounded", "float32"], ...] = ("rounded", "float32")
    plain, recorded = [], {precision: [] for precision in precisions}  # type: ignore[var-annotated]
    size = {}
    for run in range(arguments.runs + 1):
        start = time.perf_counter()
        generate(model, prompt, settings)
        if run > 0:
            plain.append(time.perf_counter() - start)
        for precision in precisions:
            out = folder / precision
            start = time.perf_counter()
            trace = record(
                model, prompt, settings, out=out, recording=Recording(precision=precision), overwrite=run > 0
            )
            if run > 0:
                recorded[precision].append(time.perf_counter() - start)
            size[precision] = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    strongest = float(trace[0]["received"].max())
    shutil.rmtree(folder)
    print(f"plain generation: {statistics.median(plain):.1f} s; strongest received attention {strongest:.2f}")
    for precision in precisions:
        ratio = statistics.median(a / b for a, b in zip(recorded[precision], plain, strict=True))
        seconds = statistics.median(recorded[precision])
        print(f"{precision}: {size[precision] / 1e6:.1f} MB, {seconds:.1f} s, {ratio:.2f} times the plain generation")


if __name__ == "__main__":
    main()
