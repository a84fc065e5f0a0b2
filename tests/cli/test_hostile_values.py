"""Values that nothing can take, in every option of every command: one line and exit code 2, before any work."""

from collections.abc import Iterator

import pytest
from cli_runs import Command
from typer.core import TyperGroup

from sinkscope.cli.groups import _INFINITE
from sinkscope.cli.main import _command
from sinkscope.cli.options import whole_numbers
from sinkscope.errors import UserError, clean

WHOLE = ("-9007199254740993", str(10**30), "9" * 5000, "1.5", "nan", "")
REAL = ("nan", "inf", "-inf", "1e400", "x", "")
TEXT = ("", "  ", "\0", "a\0b", "x" * 5000, "\ud800")
NEEDED = {
    "report": ["none.zarr"], "view": ["none.zarr"], "sinks": ["none.zarr"], "norms": ["none.zarr"], "info": ["none"],
    "generate": ["none", "--prompt", "a"], "trace": ["none", "--prompt", "a", "--out", "none.zarr"],
    "ablate": ["none", "--task", "copy"], "compress": ["none", "--task", "copy"], "evaluate": ["none"],
    "chat": ["none"], "export": ["none", "--out", "none.parquet"], "pull": ["hf://datasets/none/none"],
    "train": ["--out", "none"], "select train": ["--out", "none"], "select control": ["--mean-rate", "1"],
}  # fmt: skip


def options() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Every command's options that take a value, with what can't be one."""
    for name, command in _command().commands.items():
        group = command.commands if isinstance(command, TyperGroup) else {"": command}
        for part, one in group.items():
            for option in one.params:
                kind = str(getattr(option, "type_descriptor").annotation)  # noqa: B009 (typer's own)
                if option.name in ("help", "prompt") or "bool" in kind or not option.opts[0].startswith("--"):
                    continue
                real = tuple(
                    value for value in REAL if option.name not in _INFINITE or not value.endswith(("inf", "400"))
                )
                text = TEXT[2:] if "Path" in kind else TEXT  # an empty path is this folder
                values = WHOLE if "int" in kind else real if "float" in kind else text
                yield f"{name} {part}".strip(), option.opts[0], values


@pytest.mark.parametrize("command", sorted({name for name, _, _ in options()}))
def test_every_option_refuses_what_nothing_can_take(
    sinkscope: Command, tmp_path: object, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(str(tmp_path))
    tried = 0
    for option, value in ((option, value) for name, option, values in options() if name == command for value in values):
        line = [*command.split(), *NEEDED.get(command, []), option, value]
        said = sinkscope(*line).mistake
        assert option in said, line
        assert said.isprintable()
        assert len(said) < 2200
        tried += 1
    assert tried >= 4


@pytest.mark.parametrize("given", [["1,2"], ["1", "2"], [" 1 ", "2"], ["1 , 2"]])
def test_commas_and_repetition_are_the_same(given: list[str]) -> None:
    assert whole_numbers("--layers", given) == (1, 2)


@pytest.mark.parametrize(
    "given", [["1,"], [""], ["1", ""], ["1,1"], ["1", "01"], ["x"], ["1.5"], ["1e3"], ["9" * 5000]]
)
def test_empty_double_and_foreign_values_are_refused(given: list[str]) -> None:
    with pytest.raises(UserError, match="--layers"):
        whole_numbers("--layers", given)


def test_what_is_printed_controls_no_terminal() -> None:
    for letter in map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x202E, 0x2066, 0x200F, 0x2028, 0xD800)):
        assert clean(letter) == letter if letter in "\t\n" else clean(letter).isascii()
        assert clean(letter).isprintable() or letter in "\t\n"
    assert clean("שלום 漢字 😀") == "שלום 漢字 😀"
