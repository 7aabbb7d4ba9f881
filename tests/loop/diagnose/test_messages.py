"""Every sentence about a run is used, with exactly the numbers that it needs."""

import ast
import string
from pathlib import Path

from bilevel.loop.diagnose import messages

FOLDER = Path(messages.__file__).parent


def calls():
    """Return (code, names of the numbers) for every call that writes a sentence."""
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("say", "_finding"):
                codes = [each.value for each in node.args if isinstance(each, ast.Constant)]
                if codes:  # the last names the sentence
                    yield codes[-1], {each.arg for each in node.keywords}


def test_every_sentence_gets_its_numbers():
    used = list(calls())
    assert {code for code, _ in used} == set(messages.SENTENCES)
    for code, given in used:
        fields = {name for _, name, _, _ in string.Formatter().parse(messages.SENTENCES[code]) if name}
        assert given == fields, code
