"""What the scripts beside this file share: running the commands that their pages show, and tables of what came out."""

import csv
from pathlib import Path

from sinkscope.cli.main import run
from sinkscope.intervals import wilson_interval


def sinkscope(command: str) -> None:
    """Print one command of the command line and run it; one that fails ends the script."""
    print(f"$ sinkscope {command}", flush=True)
    if run(command.split()) != 0:
        raise SystemExit(2)


def read_table(file: Path) -> list[dict[str, str]]:
    """The rows of a `table.csv`."""
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def share(mean: float, n: int) -> str:
    """Right answers of so many examples in per cent, with Wilson's interval.

    Of several draws their mean, with the interval of one draw's number of examples.
    """
    low, high = wilson_interval(round(mean * n), n)
    return f"{100 * mean:.1f} ({100 * low:.1f} to {100 * high:.1f})"
