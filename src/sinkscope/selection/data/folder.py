"""A folder of pictures, one sub-folder a class.

    load_images("folder:flowers", size=64)

    flowers/train/rose/1.png, flowers/test/rose/7.png      parts by name: train (training), test (testing), and val
                                                           (valid, validation, dev), which is the test part where no
                                                           other is
    flowers/rose/1.png, flowers/tulip/2.png                one piece: a fifth of every class is drawn for the test

Classes and files are taken in the order of their names. Hidden files are passed over; anything else that is no picture
is skipped and named. Two copies of one picture, one in either part, are not noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from sinkscope.errors import UserError
from sinkscope.selection.data.reading import Picture, describe_skipped, read_parts
from sinkscope.selection.data.sources import Parts, Source, as_parts, roles, source, with_test

_WANTED = "wanted one sub-folder a class, or train/ and test/ with one a class each"


@source("folder")
@dataclass(frozen=True)
class Folder(Source):
    takes, needs = "PATH", True

    def read(self) -> Parts:
        root = Path(self.where).expanduser()
        folders = _part_folders(root)
        classes = _same_classes(folders)
        pictures = {part: _pictures(folder, classes) for part, folder in folders.items()}
        sets = read_parts(pictures, classes, self.preprocessing, self.title)
        for part, one in sets.items():
            for label in sorted(set(range(len(classes))) - set(one.labels.tolist())):
                folder = folders[part] / classes[label]
                own = tuple(skipped for skipped in one.skipped if Path(skipped[0]).parent == folder)
                raise UserError(f"{folder}: no picture of this class can be read; {describe_skipped(own, 1)}")
        return as_parts(sets, self.title, self.seed)


def _part_folders(root: Path) -> dict[str, Path]:
    """The folders of the parts; {"all": root} where the sub-folders are the classes."""
    names = _sub_folders(root)
    found = roles(names, str(root))
    others = sorted(set(names) - set(found.values()))
    if "train" in found and len(found) > 1:
        if others:
            raise UserError(f"{root}: beside {' and '.join(sorted(found.values()))} there is {others[0]}; {_WANTED}")
        return {role: root / name for role, name in with_test(found).items()}
    if found and not others:
        there, lacking = "/, ".join(found.values()), "test/ or val/" if "train" in found else "train/"
        raise UserError(
            f"{root}: has {there}/ but no {lacking}; add it, or give the folder of classes itself to have it split"
        )
    return {"all": root}


def _same_classes(folders: Mapping[str, Path]) -> tuple[str, ...]:
    by_part = {part: tuple(_sub_folders(path)) for part, path in folders.items()}
    first, classes = next(iter(by_part.items()))
    if len(classes) < 2:
        raise UserError(f"{folders[first]}: has {len(classes)} class, at least two are needed; {_WANTED}")
    for part, others in by_part.items():
        odd = sorted(set(classes) ^ set(others))
        if odd:
            where, lacking = (first, part) if odd[0] in classes else (part, first)
            raise UserError(
                f"{folders[part]}: class {odd[0]!r} is in {where} but not in {lacking} ({len(odd)} of "
                f"{len({*classes, *others})} classes differ); every part needs the same sub-folders"
            )
    return classes


def _pictures(folder: Path, classes: tuple[str, ...]) -> list[Picture]:
    """All files of all classes. Raises `UserError` for a class without any."""
    found = []
    for label, name in enumerate(classes):
        entries = _entries(folder / name)
        files = [path for path in entries if path.is_file() or not path.exists()]  # no pipes, no devices
        if not files:
            deeper = " but further folders" if any(path.is_dir() for path in entries) else ""
            raise UserError(f"{folder / name}: a class with no pictures{deeper}; {_WANTED}")
        found += [Picture(str(path), partial(_open, path), label) for path in files]
    return found


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _sub_folders(root: Path) -> list[str]:
    """Their names, at least one."""
    found = [path.name for path in _entries(root) if path.is_dir()]
    if not found:
        raise UserError(f"{root}: has no folder in it; {_WANTED}")
    return found


def _entries(folder: Path) -> list[Path]:
    """What is in a folder and not hidden, by name."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: not a folder that can be read ({error.strerror}); {_WANTED}") from error
