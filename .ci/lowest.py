"""Print pip constraints: the lowest version that pyproject.toml declares of every direct dependency.

python .ci/lowest.py [extra …] > constraints.txt
"""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
for requirement in [*project["dependencies"], *(one for name in sys.argv[1:] for one in extras[name])]:
    found = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\d.]+),<[\d.]+", requirement)
    if found is None:
        sys.exit(f"pyproject.toml: {requirement!r} must read name>=lowest,<next")
    print(f"{found[1]}=={found[2]}")
