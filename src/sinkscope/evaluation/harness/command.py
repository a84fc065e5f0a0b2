"""`sinkscope-lm-eval`: the harness's own command line, with our model known to it.

Arguments and output are those of `lm_eval`. A mistake of the user's is one line and exit code 2: our own messages, data
that can't be fetched, and what the harness itself refuses in its arguments. Ctrl-C ends it with code 130, SIGTERM with
143.
"""

from __future__ import annotations

import sys
from types import TracebackType

from sinkscope.errors import MISTAKE, UserError, end_at_sigterm, interrupt_code, one_line
from sinkscope.evaluation.harness.registering import register

_REFUSING = ("lm_eval.config.evaluate_config", "lm_eval.evaluator")
"""Modules of the harness whose ValueErrors are about what the user asked for."""
_LOCAL = (
    "offline, give a task with metrics of the harness and a local file (dataset_path: json, dataset_kwargs: "
    "{data_files: {test: FILE}} in its yaml) and name its folder with --include_path; docs/lm-eval.md has examples"
)


def main() -> None:
    """Run the harness with the process's arguments and exit."""
    end_at_sigterm()
    try:
        register()
        from lm_eval.__main__ import cli_evaluate  # reads the command line itself

        cli_evaluate()
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt as interrupt:
        _fail("interrupted; the harness keeps nothing before its end, run it again", interrupt_code(interrupt))
    except (ConnectionError, FileNotFoundError) as error:
        _fail(f"a task needs what can't be had here: {error}; {_LOCAL}")
    except ValueError as error:
        if _origin(error.__traceback__) not in _REFUSING:
            raise
        _fail(str(error))


def _fail(message: str, code: int = MISTAKE) -> None:
    print(f"sinkscope-lm-eval: {one_line(message)}", file=sys.stderr)
    sys.exit(code)


def _origin(traceback: TracebackType | None) -> str:
    """The module that raised."""
    name = ""
    while traceback is not None:
        name, traceback = str(traceback.tb_frame.f_globals.get("__name__")), traceback.tb_next
    return name
