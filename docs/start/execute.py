"""Runs the notebooks of this folder and keeps what they print and draw; nothing of the machine, and no times of cells.

python docs/start/execute.py            # writes them
python docs/start/execute.py --check    # only tries whether they run
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
METADATA = {
    "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
    "language_info": {"name": "python"},
}


def main() -> None:
    os.environ.pop("BILEVEL_DATA", None)  # the bundled data, as a reader has them
    for path in sorted(HERE.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=600, record_timing=False, coalesce_streams=True).execute()
        notebook.metadata = METADATA
        nbformat.validate(notebook)
        if "--check" not in sys.argv:
            nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
