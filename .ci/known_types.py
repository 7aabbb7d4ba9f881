"""Fail if a type checker of a user knows fewer types of the package than before.

python .ci/known_types.py    (with the extra `lint`, in the environment that the package is installed in)

Every public name has a completely known type, except for estimators, because their base classes in scikit-learn have
no types. Of all names that pyright counts as public, at least the share LEAST has a known type.
"""

import json
import re
import subprocess
import sys

LEAST = 0.97  # raise it when the share rises
PUBLIC = r"bilevel\.((adjoints|data|hooks|plot|problems|prox|theory)\.)?[A-Za-z]\w*"

command = ["pyright", "--verifytypes", "bilevel", "--ignoreexternal", "--outputjson"]
ran = subprocess.run(command, capture_output=True, text=True, check=False)
report = json.loads(ran.stdout)["typeCompleteness"]
public = [one for one in report["symbols"] if re.fullmatch(PUBLIC, one["name"])]
if len(public) < 100:
    sys.exit(f"pyright found only {len(public)} public names: is this the environment of the package?")
if unknown := [one["name"] for one in public if not one["isTypeKnown"] or one["isTypeAmbiguous"]]:
    sys.exit(
        f"types that are not completely known: {', '.join(unknown)}; run {' '.join(command[:-1])} for the reason"
    )
if (score := report["completenessScore"]) < LEAST:
    sys.exit(
        f"{score:.2%} of all names have a known type, less than {LEAST:.2%}; run {' '.join(command[:-1])} for the list"
    )
print(f"types: {len(public)} public names known, {score:.2%} of all")
