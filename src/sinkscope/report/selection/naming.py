"""What models of token selection are called in figures."""

from pathlib import PurePath

from sinkscope.report.figures.labels import printable, shortened

_LONGEST = 40


def model_title(name: str) -> str:
    """A shipped model's name, or the last two parts of a folder: every training calls its own `model`."""
    return printable(shortened("/".join(PurePath(name).parts[-2:]) or name, _LONGEST))
