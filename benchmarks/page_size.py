"""Size and time of reports: synthetic traces of LLaDA-8B's counts, and traces of the packaged twins.

    python benchmarks/page_size.py
    python benchmarks/page_size.py --steps 64 --layers 16

Three synthetic traces of 128 steps, 32 layers x 32 heads, 165 positions:

- calm: every head has its own keys that it looks at, a few strongly, and drifts slowly from step to step, as in
  recorded denoising;
- restless: the same, drawn anew at every step; changes from step to step help no more;
- worst: amounts spread evenly over the whole scale, independent of each other: nothing compresses.

Printed for each: size of the trace on disk, of the report, the worst relative error of its values, and seconds.
"""

import argparse
import http.client
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from threading import Thread

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sinkscope.attention import GROUPS
from sinkscope.decoding import Decoding, Denoising
from sinkscope.families import load_model
from sinkscope.report.page import Live, PageServer, Written, choose, read_template, write_report
from sinkscope.trace import Counts, Statistics, TraceStore, plan_layout, record

PROMPT, BLOCK = 37, 32
KINDS = ("calm", "restless", "worst")


def shares(kind: str, counts: Counts, groups: int) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Received attention (layer, head, position), and by group (layer, group, position), of every step."""
    rng = np.random.default_rng(20261128)
    shape = (counts.layers, counts.heads, counts.positions)
    liking = rng.normal(0, 1.5, shape)
    for key in (0, PROMPT - 1, PROMPT + 20):
        liking[..., key] += rng.exponential(3.0, shape[:2])
    mood = rng.normal(0, 0.5, shape)
    kept = 0.97 if kind == "calm" else 0.0
    for _ in range(counts.max_steps):
        mood = kept * mood + np.sqrt(1 - kept**2) * rng.normal(0, 0.5 if kind == "calm" else 1.5, shape)
        heat = rng.uniform(0, np.log(100 * counts.positions), shape) if kind == "worst" else liking + mood
        received = softmax(heat)
        by_group = softmax(heat[:, :groups] + rng.normal(0, 0.1, (counts.layers, groups, counts.positions)))
        yield received, by_group


def softmax(heat: NDArray[np.float64]) -> NDArray[np.float32]:
    amounts = np.exp(heat - heat.max(-1, keepdims=True))
    received: NDArray[np.float32] = (amounts / amounts.sum(-1, keepdims=True)).astype(np.float32)
    return received


def write_trace(path: Path, kind: str, counts: Counts) -> None:
    """A diffusion trace of two groups of queries that ask at every step, and tokens committed from left to right."""
    layout = plan_layout(counts, Statistics(groups=GROUPS, by_group="mean"))
    attributes = {"model": {"name": kind, "bidirectional": True, "mask_token_id": 7, "special_ids": [7]}}
    rng = np.random.default_rng(0)
    final = rng.integers(8, 30_000, counts.positions).astype(np.int32)
    place = np.arange(counts.positions)
    with TraceStore.create(path, attributes, overwrite=True) as store:
        writer = store.sample(0, kind, layout, {"prompt_length": PROMPT})
        for step, (received, asked) in enumerate(shares(kind, counts, 3)):
            now = PROMPT + step
            start = PROMPT + step // BLOCK * BLOCK
            by_group = np.zeros((counts.layers, len(GROUPS), counts.positions), dtype=np.float32)
            by_group[:, [0, 3, 4]] = asked
            confidence = np.where(place == now, rng.random(), np.nan).astype(np.float32)
            writer.append(
                {
                    "received": received,
                    "received_by_group": by_group,
                    "queries": np.array([PROMPT, start - PROMPT, now - start, BLOCK, 1], dtype=np.int32),
                    "canvas": np.where(place >= now, 7, final).astype(np.int32),
                    "committed": place == now,
                    "confidence": confidence,
                    "block": step // BLOCK,
                    "block_start": start,
                    "block_stop": start + BLOCK,
                    "query_start": 0,
                    "query_stop": counts.positions,
                }
            )
        texts = {str(token): f"Ġtoken{token}" for token in [7, *final.tolist()]}
        writer.finish({"sequence": final}, {"tokens": texts, "text": None})


def twins(folder: Path) -> Iterator[Path]:
    """Traces of the packaged twins on the problems of `sinkscope demo`'s kind."""
    prompts = [
        "Copy the list: a d f g k m =>",
        "The key of ruby is 47. The key of jade is 31. What is the key of jade? =>",
    ]
    for name in ("twin-dlm", "twin-ar"):
        model = load_model(name, device="cpu")
        settings = (
            Decoding(max_new_tokens=24) if name == "twin-ar" else Denoising(gen_length=24, block_length=8, steps=24)
        )
        record(model, prompts, settings, out=folder / name, overwrite=True)
        yield folder / name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 128), ("layers", 32), ("heads", 32), ("positions", 165)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    counts = Counts(
        max_steps=arguments.steps, layers=arguments.layers, heads=arguments.heads, kv_heads=arguments.heads,
        positions=arguments.positions,
    )  # fmt: skip
    table = Table("trace", "on disk, MB", "report, MB", "worst error, %", "seconds")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in KINDS:
            write_trace(folder / kind, kind, counts)
            measure(table, folder / kind)
        for trace in twins(folder):
            measure(table, trace)
    Console().print(table)


def report_of(trace: Path) -> Written:
    """A report beside the trace."""
    return write_report(choose([trace])[0], trace.with_suffix(".html"), overwrite=True, most_megabytes=1000)


def served(trace: Path) -> tuple[float, float]:
    """Milliseconds for a step of `sinkscope view`, over a connection that stays open, read anew and kept."""
    template = read_template()
    times: dict[str, list[float]] = {"anew": [], "kept": []}
    with PageServer(Live(lambda: choose([trace])[0], template), template) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        wire = http.client.HTTPConnection("127.0.0.1", int(server.server_address[1]), timeout=60)
        ask(wire, server.root)
        for step in range(choose([trace])[0][0].trace.samples[0].steps):
            for taken in times.values():
                start = time.perf_counter()
                ask(wire, f"{server.root}data/0/0/received/{step}")
                taken.append(1000 * (time.perf_counter() - start))
        server.shutdown()
    return median(times["anew"]), median(times["kept"])


def ask(wire: http.client.HTTPConnection, path: str) -> None:
    wire.request("GET", path)
    answer = wire.getresponse()
    answer.read()
    assert answer.status == 200, answer.status


def measure(table: Table, trace: Path) -> None:
    start = time.perf_counter()
    written = report_of(trace)
    seconds = time.perf_counter() - start
    size = sum(file.stat().st_size for file in trace.rglob("*") if file.is_file())
    error = f"{100 * written.worst_error:.1f}"
    table.add_row(trace.name, f"{size / 1e6:.2f}", f"{written.size / 1e6:.2f}", error, f"{seconds:.1f}")


if __name__ == "__main__":
    main()
