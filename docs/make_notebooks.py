"""Run the notebooks of docs/notebooks from top to bottom and store their outputs in them.

    python docs/make_notebooks.py        # needs sinkscope[docs]

The site shows what is stored. The cells stand in the notebooks; they are edited there.
"""

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent / "notebooks"


def main() -> None:
    """Run each in an empty folder, without the bars that libraries print."""
    os.environ.update(TRANSFORMERS_VERBOSITY="error", HF_HUB_DISABLE_PROGRESS_BARS="1", TQDM_DISABLE="1")
    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(file, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(notebook, resources={"metadata": {"path": folder}}).execute()
        for cell in notebook.cells:
            cell.metadata.clear()  # when each cell ran is of no interest
        nbformat.write(notebook, file)
        print(file)


if __name__ == "__main__":
    main()
