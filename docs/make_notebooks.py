"""Run the notebooks of docs/notebooks from top to bottom and store their outputs in them.

    python docs/make_notebooks.py        # needs sinkscope[docs]
    python docs/make_notebooks.py watch  # one of them

The site shows what is stored. The cells stand in the notebooks; they are edited there.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent / "notebooks"


def main() -> None:
    """Run each in an empty folder, without the bars that libraries print."""
    os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1", TQDM_DISABLE="1")
    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        if file.stem not in (sys.argv[1:] or file.stem):
            continue
        notebook = nbformat.read(file, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(notebook, resources={"metadata": {"path": folder}}).execute()
        for cell in notebook.cells:
            cell.metadata.clear()  # when each cell ran is of no interest
            if cell.cell_type == "code":
                cell.outputs = _joined(cell.outputs)
        nbformat.write(notebook, file)
        print(file)


def _joined(outputs: list[Any]) -> list[Any]:
    """Printed lines come one by one as they are printed; the page shows them as one block."""
    kept: list[Any] = []
    for output in outputs:
        if kept and output.output_type == kept[-1].output_type == "stream":
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


if __name__ == "__main__":
    main()
