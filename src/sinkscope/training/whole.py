"""A small file that is written whole or not at all, whatever kills the process."""

from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Write a text under another name, then give it its own; what a kill left of the other is replaced."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(file)
