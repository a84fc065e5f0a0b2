"""How long the command line takes to its help and to the first line about a mistake, and what one import costs.

    python benchmarks/start.py
    python benchmarks/start.py --runs 9

Printed are medians over processes of their own, in seconds of processor time (user and system), which other work on
the machine hardly disturbs.
"""

import argparse
import resource
import subprocess
import sys
from statistics import median

RUN = "from sinkscope.cli.main import main; main()"
ASKED = (
    "--version", "--help", "trace --help", "ablate --help", "select control --help", "bogus", "sinks ./nowhere",
    "ablate twin-ar --task moon", "generate ./nowhere --prompt hello",
)  # fmt: skip


def seconds(*arguments: str) -> float:
    """Processor time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    lines = {f"sinkscope {line}": ("-c", RUN, *line.split()) for line in ASKED}
    for name, arguments in {**lines, "import torch, transformers": ("-c", "import torch, transformers")}.items():
        print(f"{name:<40} {median(seconds(*arguments) for _ in range(runs)):.2f} s")


if __name__ == "__main__":
    main()
