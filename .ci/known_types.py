"""Refuses a package whose types say less to a user's checker than they did.

python .ci/known_types.py    (with the extra `lint`, in the environment that the package is installed in)

Every public name has a type known in all its parts, but for estimators, whose base classes are scikit-learn's and have
none. Of all the names in all modules, which pyright counts as public, at least the share LEAST has.
"""

import json
import re
import subprocess
import sys

LEAST = 0.97  # raise it with what is reached
PUBLIC = r"bilevel\.((adjoints|data|hooks|plot|problems|prox|theory)\.)?[A-Za-z]\w*"

command = ["pyright", "--verifytypes", "bilevel", "--ignoreexternal", "--outputjson"]
ran = subprocess.run(command, capture_output=True, text=True, check=False)
report = json.loads(ran.stdout)["typeCompleteness"]
public = [one for one in report["symbols"] if re.fullmatch(PUBLIC, one["name"])]
if len(public) < 100:
    sys.exit(f"pyright found only {len(public)} public names: is this the environment of the package?")
if unknown := [one["name"] for one in public if not one["isTypeKnown"] or one["isTypeAmbiguous"]]:
    sys.exit(
        f"types that are not known in all their parts: {', '.join(unknown)}; {' '.join(command[:-1])} says why"
    )
if (score := report["completenessScore"]) < LEAST:
    sys.exit(
        f"{score:.2%} of all names have a known type, less than {LEAST:.2%}; {' '.join(command[:-1])} says which"
    )
print(f"types: {len(public)} public names known, {score:.2%} of all")
