"""The cells of an ablation (`sinkscope ablate --out FOLDER`), for drawing.

Cells that differ in more than which keys are masked, such as the number of examples, are kept apart.
"""

from pathlib import Path

from sinkscope.errors import UserError
from sinkscope.evaluation.ablation import Row, read_rows
from sinkscope.report.figures.inputs import Ablation


def read_ablations(folder: Path) -> tuple[Ablation, ...]:
    """Every model, task and way of masking of the folder, in the order of its cells.

    Raises `UserError` for a folder without cells, or with a line that is none.
    """
    rows = read_rows(folder)
    plain = {row.experiment: row for row in rows if row.cell.intervention is None}
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.cell.intervention is not None:
            groups.setdefault((row.experiment, row.masking), []).append(row)
    if not groups:
        raise UserError(f"{folder} holds no cell in which anything is masked yet: run sinkscope ablate to its end")
    alone = [plain.get(experiment) for experiment, _ in groups]
    return tuple(
        Ablation(rows=tuple([first, *some] if first is not None else some))
        for first, some in zip(alone, groups.values(), strict=True)
    )
