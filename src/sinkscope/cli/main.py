"""The `sinkscope` command. A user's mistake is one line on standard error and exit code 2, never a traceback.

What a command needs is imported when it runs: its module holds options alone, so that helps and mistakes in options
come at once.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from sinkscope.cli import (
    chat,
    console,
    demo,
    evaluate,
    experiments,
    generate,
    lab,
    select,
    sharing,
    showing,
    tables,
    trace,
    training,
)
from sinkscope.errors import (
    INCOMPLETE,
    INTERRUPTED,
    MISTAKE,
    Caution,
    FailedCellsWarning,
    UserError,
    clean,
    end_at_sigterm,
    interrupt_code,
    memory_advice,
    one_line,
)

_MEMORY = (
    "memory ran out; fewer texts at once (--batch-size), shorter texts, half precision (--dtype bfloat16) or a smaller "
    "model take less"
)
_KEPT = "nothing was kept"
"""After an interrupt of a command that says nothing else."""


class _Interrupted(Exception):  # noqa: N818
    """An interrupt on its way through typer, which would make a code of its own of it."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise _Interrupted from interrupt


app = typer.Typer(
    name="sinkscope",
    cls=_Commands,
    help="Watch attention sinks in diffusion, masked and autoregressive language models while they generate.",
    epilog="Exit codes: 0 done, 2 a mistake that one line explains, 3 cells of a grid failed, "
    "130 interrupted (Ctrl-C), 143 terminated.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _module in (
    generate, chat, trace, tables, showing, sharing, evaluate, experiments, training, lab, select, demo,
):  # fmt: skip
    _module.add_to(app)


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


@cache
def _command() -> TyperGroup:
    """All commands as typer makes them, once a process."""
    made = typer.main.get_command(app)
    assert isinstance(made, TyperGroup)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit the process. SIGTERM ends it as Ctrl-C does."""
    end_at_sigterm()
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 2 after a mistake, 3 where cells failed, 130 or 143 after an
    interrupt."""
    try:
        _quieten_libraries()
        with _cautions_in_one_line() as said, memory_advice(_MEMORY):
            result = _command()(args=arguments, prog_name="sinkscope", standalone_mode=False)
        if result == INTERRUPTED:  # typer's word for one while it read the command line
            raise KeyboardInterrupt
        sys.stdout.flush()
        return INCOMPLETE if FailedCellsWarning in said else result if isinstance(result, int) else 0
    except UserError as error:
        return _fail(str(error))
    except typer.TyperException as error:  # usage: an unknown option, a missing argument
        command = getattr(getattr(error, "ctx", None), "command_path", "sinkscope")
        return _fail(f"{error.format_message()} ({command} --help tells what there is)")
    except (KeyboardInterrupt, _Interrupted, typer.Abort) as interrupt:
        # Writes of zarr that were under way end with the process; asyncio would complain about each of them.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        cause = interrupt.__cause__ if isinstance(interrupt, _Interrupted) else interrupt
        _fail(f"interrupted; {cause if cause and cause.args else _KEPT}")
        return interrupt_code(cause)
    except (BrokenPipeError, SystemExit):
        # The reader of our output went away (`| head`); nothing is wrong, and nothing more can be said.
        # typer exits where it notices first.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a disk, a folder or a network that refuses where no more was known of it
        place = "" if error.filename is None else f"{error.filename}: "
        return _fail(f"{place}{error.strerror or error or type(error).__name__}; choose another file or folder")


def _fail(message: str) -> int:
    console.say(f"sinkscope: {one_line(message)}", err=True)
    return MISTAKE


@contextmanager
def _cautions_in_one_line() -> Iterator[set[type[Warning]]]:
    """Print our own warnings as one line, once a command, without the place in the code; leave others as they are.
    Gives the kinds that were printed."""
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
            show_others(clean(str(message)), category, filename, lineno, file, line)
        elif category not in said:
            said.add(category)
            console.say(f"sinkscope: warning: {one_line(str(message))}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", Caution)
        warnings.showwarning = show
        yield said


def _quieten_libraries() -> None:
    """Progress bars and notices of libraries would come between ours.

    `--json` promises that nothing else is printed. Most libraries read this once, when they are imported.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # fonts are looked for, caches are made: nobody's concern
    os.environ.setdefault("TQDM_DISABLE", "1")  # GGUF files are unpacked under a bar that transformers can't silence
    if "transformers" in sys.modules:
        from transformers.utils import logging as notices

        notices.set_verbosity_error()  # type: ignore[no-untyped-call]
        notices.disable_progress_bar()  # type: ignore[no-untyped-call]
