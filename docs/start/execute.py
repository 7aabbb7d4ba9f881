"""Runs the notebooks of this folder and keeps what they print and draw; nothing of the machine, and no times of cells.

    python docs/notebooks/execute.py
"""

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def main() -> None:
    os.environ.pop("BILEVEL_DATA", None)  # the bundled data, as a reader has them
    for path in sorted(HERE.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False).execute()
        language = {"name": "python"}
        notebook.metadata = {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": language,
        }
        nbformat.validate(notebook)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
