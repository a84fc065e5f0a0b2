"""`sinkscope-lm-eval`: the harness's own command line, with our model known to it.

Arguments and output are those of `lm_eval`. A mistake of the user's is one line and exit code 2: our own messages, data
that can't be fetched, and what the harness itself refuses in its arguments. Ctrl-C ends it with code 130, SIGTERM with
143.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import TracebackType

from sinkscope.errors import MISTAKE, UserError, end_at_sigterm, interrupt_code, one_line

_NAME = "sinkscope"
_REFUSING = ("lm_eval.config.evaluate_config", "lm_eval.evaluator")
"""Modules of the harness whose ValueErrors are about what the user asked for."""
LOCAL = (
    "offline, give a task with metrics of the harness and a local file (dataset_path: json, dataset_kwargs: "
    "{data_files: {test: FILE}} in its yaml)"
)


def check_installed() -> None:
    """Raise `UserError` where the harness is not installed."""
    if find_spec("lm_eval") is None:
        raise UserError("lm_eval is not installed; run: pip install 'sinkscope[eval]'")


def register() -> None:
    """Make `sinkscope` a model name of `lm_eval` in this process; twice does no harm.

    Raises `UserError` where the harness is not installed.
    """
    check_installed()
    import lm_eval.models  # noqa: F401  its own models: the harness lists them only while the registry is empty
    from lm_eval.api.registry import model_registry

    if _NAME not in model_registry:
        model_registry.register(_NAME, target="sinkscope.evaluation.harness.model:SinkscopeLM")


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
        _fail(
            f"a task needs what can't be had here: {error}; {LOCAL} and name its folder with --include_path; "
            "docs/how-to/lm-eval-offline.md has examples"
        )
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
