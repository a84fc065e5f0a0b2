"""Kill workers and the command itself at random moments, again and again, and look what is lost.

    python benchmarks/kills.py --kills 40

A grid is run by one process, then with `--on ray --workers 2` while one of the workers, or every fourth time the
command, is ended by SIGKILL; it goes on with `--resume`. A line that was whole in cells.jsonl must still be there after
every kill, and the folder must end as that of the one process, but for times. Grids are run until there were as many
kills as asked.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = (
    "ablate {model} --task copy --rule top-k:1,top-k:2,top-k:3,top-k:4,top-k:5,top-k:6 --control random --draws 3 "
    "--limit {limit} --batch-size 8 --json"
)


def main() -> None:
    """Print how many kills there were, of what, and whether anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--model", default="twin-dlm")
    parser.add_argument("--limit", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    draw, killed = random.Random(asked.seed), {"worker": 0, "command": 0}
    command = COMMAND.format(model=asked.model, limit=asked.limit).split()
    grids = 0
    with tempfile.TemporaryDirectory() as folder:
        wanted = cells_alone(command, Path(folder) / "alone")
        while sum(killed.values()) < asked.kills:
            grids += 1
            out = Path(folder) / f"grid-{grids}"
            while not finished(command, out, draw, killed, asked.kills):
                pass
            assert [without_time(one) for one in whole_lines(out)] == wanted, f"grid {grids} is another"
    told = ", ".join(f"{count} of a {what}" for what, count in killed.items())
    print(f"{sum(killed.values())} kills ({told}) over {grids} grids of {len(wanted)} cells: nothing was lost")


def cells_alone(command: list[str], out: Path) -> list[object]:
    """As one process runs them."""
    subprocess.run([*SINKSCOPE, *command, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
    return [without_time(one) for one in whole_lines(out)]


def finished(command: list[str], out: Path, draw: random.Random, killed: dict[str, int], most: int) -> bool:
    """Run the command, or go on with it, killing; whether it came to its end with every cell."""
    resume = ["--resume"] if out.exists() else []
    where, found = ["--out", str(out), "--on", "ray", "--workers", "2"], len(whole_lines(out))
    with subprocess.Popen([*SINKSCOPE, *command, *where, *resume], stdout=subprocess.PIPE) as process:
        while sum(killed.values()) < most:
            try:
                process.wait(draw.uniform(0.5, 6.0))
                break
            except subprocess.TimeoutExpired:
                pass
            before = set(whole_lines(out))
            what = "command" if draw.random() < 0.25 else "worker"
            there = [process.pid] if what == "command" else workers_of(process.pid)
            # Before its first cell it starts, and would never come to work if it were killed as often then.
            if there and (len(before) > found or draw.random() < 0.05):
                os.kill(draw.choice(there), signal.SIGKILL)
                killed[what] += 1
                print(f"\r{killed}, {len(before)} cells", end="", file=sys.stderr, flush=True)
            assert before <= set(whole_lines(out)), "a finished cell was lost"
        said, _ = process.communicate()
    if process.returncode == 0:
        json.loads(said)  # nothing else stands on standard output
    else:
        assert process.returncode in (3, -signal.SIGKILL), process.returncode
    return process.returncode == 0


SINKSCOPE = [sys.executable, "-c", "from sinkscope.cli.main import main; main()"]


def whole_lines(out: Path) -> list[str]:
    """Of cells.jsonl, without one that is cut short."""
    file = out / "cells.jsonl"
    return [one for one in file.read_text().splitlines(keepends=True) if one.endswith("\n")] if file.exists() else []


def without_time(line: str) -> object:
    """A cell, but for its seconds."""
    cell = json.loads(line)
    del cell["measured"]["seconds"]
    return cell


def workers_of(pid: int) -> list[int]:
    """Processes of Ray's actors that descend from a process."""
    parents: dict[int, int] = {}
    named = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if (place / "cmdline").read_bytes().startswith(b"ray::Holder"):
                named.append(int(place.name))
        except (OSError, ProcessLookupError):  # it has ended meanwhile
            continue

    def descends(one: int) -> bool:
        return one == pid or (one in parents and descends(parents[one]))

    return [one for one in named if descends(one)]


if __name__ == "__main__":
    start = time.monotonic()
    main()
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
