"""Rules by name. Every module of this folder is imported here, so a new rule is one new file and no edit elsewhere."""

from sinkscope.discovery import Register
from sinkscope.sinks.rules.base import SinkRule

_REGISTER: Register[SinkRule] = Register("sink rule")

RULES = _REGISTER.kinds
sink_rule = _REGISTER.file


def make_rule(name: str, **settings: float | int | str) -> SinkRule:
    """The rule called `name` with these parameters; the rest keep their defaults.

    Raises `UserError` for an unknown name, an unknown parameter, or a value that the rule refuses.
    """
    return _REGISTER.make(name, settings)
