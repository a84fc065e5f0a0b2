"""Options of commands that keep the cells of a grid in a folder, and what an interrupt leaves of any command."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from sinkscope.cli.groups import OptionGroup
from sinkscope.cli.options import OtherVersions
from sinkscope.errors import UserError


@contextmanager
def told_at_interrupt(kept: Callable[[], str]) -> Iterator[None]:
    """An interrupt inside ends the command with a line that says what was kept."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(kept()) from None


def going_on(out: Path) -> str:
    """What an interrupt leaves of a training."""
    return f"what {out} holds is kept: the same command goes on from its last checkpoint"


@dataclass(frozen=True, kw_only=True)
class KeepingOptions(OptionGroup):
    """Where cells are kept, and whether those there are taken over."""

    panel: ClassVar[str] = "Where results are kept"

    out: Annotated[Path | None, typer.Option(help="Folder that keeps finished cells, and the tables.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Take over the cells that the folder holds.")] = False
    other_versions: OtherVersions = False

    def __post_init__(self) -> None:
        if self.resume and self.out is None:
            raise UserError("--resume needs --out, the folder that holds the cells")

    @property
    def kept(self) -> dict[str, Any]:
        """The options as arguments of what runs a grid."""
        return {"out": self.out, "resume": self.resume, "other_versions": self.other_versions}

    def told_at_interrupt(self) -> AbstractContextManager[None]:
        """An interrupt ends the command with a line that says what was kept."""
        if self.out is None:
            return told_at_interrupt(lambda: "nothing was kept: --out FOLDER keeps cells as they end")
        return told_at_interrupt(lambda: f"cells that had ended are kept in {self.out}: go on with --resume")
