"""Tell the harness of our model. Costs the import of its model list, not of any model."""

from importlib.util import find_spec

from sinkscope.errors import UserError

NAME = "sinkscope"
TARGET = "sinkscope.evaluation.harness.model:SinkscopeLM"


def register() -> None:
    """Make `sinkscope` a model name of `lm_eval` in this process; twice does no harm.

    Raises `UserError` where the harness is not installed.
    """
    if find_spec("lm_eval") is None:
        raise UserError("lm_eval is not installed; run: pip install 'sinkscope[eval]'")
    import lm_eval.models  # noqa: F401  its own models: the harness lists them only while the registry is empty
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target=TARGET)
