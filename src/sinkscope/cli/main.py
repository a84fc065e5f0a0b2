"""The `sinkscope` command. A user's mistake is one line on standard error and exit code 2, never a traceback."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, TextIO

import typer

from sinkscope.errors import Caution, UserError

app = typer.Typer(
    name="sinkscope",
    help="Watch attention sinks in diffusion, masked and autoregressive language models while they generate.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_MEMORY = (
    "memory ran out; fewer texts at once (--batch-size), shorter texts, half precision (--dtype bfloat16) or a smaller "
    "model take less"
)
_INTERRUPTED = 130
"""What typer returns in place of a KeyboardInterrupt."""


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"sinkscope {version('sinkscope')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of every command."""


def _add_commands() -> None:
    if app.registered_commands:
        return  # a process that runs several command lines would make every command anew each time
    # Imported after the libraries were told to be quiet, which some of them read only once.
    from sinkscope.cli import (
        ablate,
        compress,
        demo,
        evaluate,
        figures,
        generate,
        info,
        norms,
        report,
        select,
        sinks,
        trace,
        train,
        view,
    )

    for module in (
        info,
        generate,
        trace,
        sinks,
        norms,
        figures,
        report,
        view,
        evaluate,
        ablate,
        compress,
        train,
        select,
        demo,
    ):
        module.add_to(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code, 0 or 2."""
    try:
        _quieten_libraries()
        _add_commands()
        from sinkscope.evaluation.memory import memory_advice  # as late as the commands

        with _cautions_in_one_line(), memory_advice(_MEMORY):
            result = app(args=arguments, prog_name="sinkscope", standalone_mode=False)
        if result == _INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except UserError as error:
        return _fail(str(error))
    except typer.TyperException as error:  # usage: an unknown option, a missing argument
        return _fail(f"{error.format_message()} (sinkscope --help lists commands and options)")
    except (KeyboardInterrupt, typer.Abort):
        # Writes of zarr that were under way end with the process; asyncio would complain about each of them.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        return _fail(
            "interrupted; what trace, ablate --out, compress --out and train had finished is kept "
            "(go on: trace, ablate and compress with --resume, train by the same command)"
        )
    except (BrokenPipeError, SystemExit):
        # The reader of our output went away (`| head`); nothing is wrong, and nothing more can be said.
        # typer exits where it notices first.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _fail(message: str) -> int:
    typer.echo(f"sinkscope: {' '.join(message.split())}", err=True)
    return 2


@contextmanager
def _cautions_in_one_line() -> Iterator[None]:
    """Print our own warnings as one line, once a command, without the place in the code; leave others as they are."""
    said: set[type[Warning]] = set()
    show_others = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, Caution):
            show_others(message, category, filename, lineno, file, line)
        elif category not in said:
            said.add(category)
            typer.echo(f"sinkscope: warning: {' '.join(str(message).split())}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", Caution)
        warnings.showwarning = show
        yield


def _quieten_libraries() -> None:
    """Progress bars and notices of libraries would come between ours.

    `--json` promises that nothing else is printed.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # fonts are looked for, caches are made: nobody's concern
    os.environ.setdefault("TQDM_DISABLE", "1")  # GGUF files are unpacked under a bar that transformers can't silence
    from transformers.utils import logging as notices

    notices.set_verbosity_error()  # type: ignore[no-untyped-call]
    notices.disable_progress_bar()  # type: ignore[no-untyped-call]
