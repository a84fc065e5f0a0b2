"""Measure what dropping keys costs `twin-ar`, for the tables and pictures of docs/compression.md, with its commands.

    OMP_NUM_THREADS=1 python docs/make_compression.py

Cells go to runs/twin-ar, whose table.md has every number, and are not measured again; pictures to
docs/figures/compression. It takes about a quarter of an hour on one core.
"""

from pathlib import Path

from commands import sinkscope

CELLS = Path("runs/twin-ar")
PICTURES = Path("docs/figures/compression")
SCORERS = "key-norm,high-key-norm,random,streaming,key-diff,expected-attention"
COMMON = f"--ratio 0.75,0.5,0.25,0.1 --draws 3 --n 200 --out {CELLS} --resume"
TASKS = "--task passkey --task lookup --task arithmetic-1"


def main() -> None:
    """Run all commands; the first that fails ends it."""
    CELLS.mkdir(parents=True, exist_ok=True)
    sinkscope(f"compress twin-ar {TASKS} --scorer {SCORERS} {COMMON}")
    sinkscope(f"compress twin-ar {TASKS} --scorer key-norm,random --skip-layers 0,1 {COMMON}")
    sinkscope(f"compress twin-ar --task needle --lengths 32,64 --depths 0,0.25,0.5,0.75,1 --scorer {SCORERS} {COMMON}")
    sinkscope(f"figures --compression {CELLS} --out {PICTURES} --overwrite")


if __name__ == "__main__":
    main()
