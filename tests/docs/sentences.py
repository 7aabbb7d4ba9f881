"""The figures in the sentences of a page: what is shown, and how precisely.

A figure is a number with a point or an exponent, one from a thousand on, or one that counts times, per cents, seconds
or bytes. Counts below a thousand are not. Neither are names: of theorems, versions of Python, licenses, years,
issues. Code is run elsewhere, and tables have separate tests (test_measured.py).
"""

import json
import re
from dataclasses import dataclass
from functools import cache

from pages import FENCED, ROOT

SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
MANTISSA = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
POWER = r"10(?:⁻?[⁰¹²³⁴-⁹]+|\^\{?-?\d+\}?)"
END = r"(?!\d|,\d{3}|\.\d)"
NUMBER = rf"(?<![\w.^√])(?:(?<![\\)])[-−])?(?:(?:{MANTISSA} *[·×] *)?{POWER}|{MANTISSA}(?:e[-+]?\d+)?){END}"
SCALES = {"%": -2, "per cent": -2, "percent": -2, "thousand": 3, "million": 6, "billion": 9}  # powers of ten
UNITS = (
    "times|x|thousand|[mb]illion|per ?cent|seconds?|minutes?|min|hours?|h|days?|ns|µs|ms|s"
    "|[kMGT]i?B(?:/s)?|bytes"
)
UNIT = rf"[ *]*(?:%|×(?! *\d)|-fold\b|(?:{UNITS})\b)"  # in bold too
LISTED = rf"(?:(?:,?(?: to| or| and)|,|–| ±)[ *]*{NUMBER})*"  # 10, 20, or 40 %
FIGURE = re.compile(rf"(?P<number>{NUMBER})(?={LISTED}(?P<unit>{UNIT})?)")

CODE = re.compile(r"`[^`]*`")
FORMULA = re.compile(r" = |\d,\d{3}")  # `rate=0.1` is code, `μ = 0.1` a formula, `(5,000 images)` a message
NAMES = (
    r"(?:[Tt]heorem|[Ll]emma|[Aa]ssumption)s? \(?\d+\.\d+(?:(?:,| and| to) \d+\.\d+)*"
    r"|Python (?:below )?\d+\.\d+"
    r"|(?:Apache|CC BY)[-A-Z ]*\d\.\d"
    r"|\b(?:19|20)\d\d\b"
    r"|\[JAX \d+\]"
)
EXPONENTS = r"(?<!10)\^\{[^{}]*\}|_\{[^{}]*\}"


@dataclass(frozen=True)
class Figure:
    """A number of a page, and its place in the text."""

    shown: str
    unit: str
    start: int
    end: int

    @property
    def plain(self) -> bool:
        """Return whether this is a count below a thousand, which needs no origin."""
        return self.shown.strip("-−").isdecimal() and self.value < 1000 and not self.unit

    @property
    def value(self) -> float:
        return float(f"{self._digits}e{self._exponent}")

    @property
    def precision(self) -> float:
        """Return half a unit of the last digit that is shown."""
        return 0.5 * 10.0 ** (self._exponent - len(self._digits.partition(".")[2]))

    @property
    def _parts(self) -> re.Match:
        number = re.sub(r"10(?=[⁻⁰¹²³⁴-⁹])", "10^", re.sub(r"[ ,{}]", "", self.shown)).translate(SUPERSCRIPTS)
        parts = re.fullmatch(r"([-−]?)(?:([\d.]+?)(?:e([-+]?\d+)|[·×]?10\^(-?\d+))?|10\^(-?\d+))", number)
        assert parts, number
        return parts

    @property
    def _digits(self) -> str:
        return self._parts[1].replace("−", "-") + (self._parts[2] or "1")

    @property
    def _exponent(self) -> int:
        return int(self._parts[3] or self._parts[4] or self._parts[5] or 0) + SCALES.get(self.unit, 0)


@cache
def prose(page: str) -> str:
    """Return the text of a page in one line, without blocks of code, tables and the targets of links."""
    text = (ROOT / page).read_text()
    if page.endswith(".ipynb"):
        cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    text = re.sub(r"^\|.*\|[ ]*$|<!--.*?-->", "", FENCED.sub(_words, text), flags=re.MULTILINE)
    return " ".join(re.sub(r"\]\([^)]*\)|<https?:[^>]*>", "]", text).split())


def _words(block: re.Match) -> str:
    """Return the words of a fenced block: of a note, a caption or a list, and none of code."""
    name = re.match(r"\{([\w-]+)\}", block[1])
    return block[2] if name and name[1] not in ("code-block", "include", "eval-rst", "toctree") else ""


@cache
def figures(page: str) -> tuple[Figure, ...]:
    """Return every number in the text of a page, also plain ones."""
    text = CODE.sub(lambda code: code[0] if FORMULA.search(code[0]) else "`" * len(code[0]), prose(page))
    variables = lambda formula: re.sub(r"(?<=\d)[a-df-zA-Z]", r"\\", formula[0])  # no units: 2s, 12x
    text = re.sub(r"\$+[^$]*\$+", variables, text)
    text = re.sub(r"\\(cdot|times)", lambda word: "·×"[word[1] == "times"].rjust(len(word[0])), text)
    text = _blank(r"\\,|\\(?=%)|\$", _blank(r"\\[a-zA-Z]+", _blank(NAMES, text), "\\"))
    text = _blank(EXPONENTS, text, "\\")
    return tuple(
        Figure(match["number"], (match["unit"] or "").strip(" *"), *match.span("number"))
        for match in FIGURE.finditer(text)
    )


def _blank(pattern: str, text: str, by: str = " ") -> str:
    """Return the text with the matches replaced by as many other characters."""
    return re.sub(pattern, lambda match: by * len(match[0]), text)
