"""How the scripts beside this file run the commands that their pages show."""

from sinkscope.cli.main import run


def sinkscope(command: str) -> None:
    """Print one command of the command line and run it; one that fails ends the script."""
    print(f"$ sinkscope {command}", flush=True)
    if run(command.split()) != 0:
        raise SystemExit(2)
