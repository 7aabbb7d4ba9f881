"""Draws the pictures of this folder again, each by the code of the page that shows it.

    python docs/pictures/make.py

A page's code saves them where it is run: here in a folder of its own, from which they are taken.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PAGES = ["index.md", "start/tutorial.md", "start/pytorch.md", "how-to/see-a-run.md"]
REST = "## While it runs"  # what follows draws nothing


def main() -> None:
    for script, picture in {"single_loop.py": "single-loop.svg", "live_view.py": "run-live.svg"}.items():
        subprocess.run([sys.executable, HERE / script, HERE / picture], check=True)
    # The same picture is the same file: no date in it, no random names.
    environment = os.environ | {"SOURCE_DATE_EPOCH": "0", "MPLBACKEND": "Agg"}
    environment.pop("BILEVEL_DATA", None)
    for page in PAGES:
        text = (HERE.parent / page).read_text().split(REST)[0]
        code = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "matplotlibrc").write_text("svg.hashsalt: bilevel\n")
            Path(folder, "page.py").write_text("\n".join(code))
            subprocess.run([sys.executable, "page.py"], cwd=folder, env=environment, check=True)
            for picture in Path(folder).glob("*.svg"):
                (HERE / picture.name).write_bytes(picture.read_bytes())


if __name__ == "__main__":
    main()
