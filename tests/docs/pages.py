"""The blocks of a page in their order: code, commands and their output."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PRINTED = ("text", "output")
TORCH = re.compile(r"^(?:import|from) torch\b", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """A block of a page, and the output shown directly below it."""

    language: str
    code: str
    line: int = 0  # the one that the block begins after
    printed: str | None = None


def parts(page: str) -> list[Part]:
    """Return the fenced blocks of a Markdown page or the cells of a notebook, each with its output."""
    text = (ROOT / page).read_text()
    return _cells(json.loads(text)) if page.endswith(".ipynb") else _blocks(text)


def blocks(page: str, *languages: str) -> list[Part]:
    return [part for part in parts(page) if part.language in languages]


def imports_torch(page: str) -> bool:
    """Return whether the code of a page needs PyTorch, which only one lane of continuous integration has."""
    return any(TORCH.search(part.code) for part in blocks(page, "python"))


def _blocks(text: str) -> list[Part]:
    found, last = [], 0
    for match in FENCED.finditer(text):
        language, code = match[1].strip(), match[2]
        between, last = text[last : match.start()], match.end()
        if language in PRINTED and found and found[-1].printed is None and not between.strip():
            above = found.pop()
            found.append(Part(above.language, above.code, above.line, code))
        else:
            found.append(Part(language, code, text.count("\n", 0, match.start(2))))
    return found


def _cells(notebook: dict) -> list[Part]:
    found = []
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "code":
            streams = [output for output in cell["outputs"] if output.get("name") == "stdout"]
            printed = "".join(line for stream in streams for line in stream["text"])
            found.append(Part("python", "".join(cell["source"]), number, printed or None))
    return found


# ---- comparing -------------------------------------------------------------------------------------------------

NUMBER = r"(?<![\w.])[-+−]?(?:\d+(?:,\d{3})+|\d+)?\.?\d+(?:[eE][-+]?\d+)?(?!\w|\.\d)"
TOKEN = re.compile(rf"(?P<number>{NUMBER})|(?P<space>\s+)|(?P<rest>.)")


def differs(shown: str, printed: str) -> str | None:
    """Return None if the page shows the printed output, otherwise both.

    They must agree exactly, with three exceptions: numbers with a point or an exponent may differ by a unit of the last
    digit, because platforms round differently (whole numbers may not); `...` stands for anything; and all
    stretches of space are equal.
    """
    text, here = _tight(printed), 0
    first, *others = _tight(shown).split("...")
    for i, piece in enumerate([first, *others]):
        pattern = _pattern(piece.strip())
        meet = pattern.fullmatch if i == len(others) else pattern.match
        starts = [0] if i == 0 else range(here, len(text) + 1)
        met = next((match for start in starts if (match := meet(text, start)) and _close(piece, match)), None)
        if met is None:
            return f"the page shows\n{shown}\nbut this was printed:\n{printed}"
        here = met.end()
    return None


def _pattern(piece: str) -> re.Pattern:
    tokens = TOKEN.finditer(piece)
    return re.compile(
        "".join(
            f"({NUMBER})" if token["number"] else r"\s+" if token["space"] else re.escape(token["rest"])
            for token in tokens
        )
    )


def _close(piece: str, match: re.Match) -> bool:
    numbers = [token["number"] for token in TOKEN.finditer(piece) if token["number"]]
    return all(
        abs(_value(ours) - _value(theirs)) <= _unit(ours)
        for ours, theirs in zip(numbers, match.groups(), strict=True)
    )


def _tight(text: str) -> str:
    """Return the text without the space that NumPy adds at the ends of arrays."""
    return re.sub(r"(?<=\[)\s+|\s+(?=\])", "", text.strip())


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))


def _unit(number: str) -> float:
    """Return a unit of the last digit, slightly enlarged for the rounding of decimals; 0 for whole numbers."""
    digits, _, exponent = number.lower().partition("e")
    if "." not in digits and not exponent:
        return 0.0
    decimals = len(digits.partition(".")[2])
    return 1.001 * 10.0 ** (int(exponent or 0) - decimals)
