"""ASCII for terminals without other letters: alpha for α, <= for ≤, ||grad Phi||^2 for ‖∇Φ‖²."""

import codecs
import unicodedata
from itertools import groupby

NAME = "bilevel.plain"  # of the error handler
WORDS = {"∇": "grad ", "√": "sqrt ", "∈": "in ", "∞": "inf", "⊤": "^T", "✓": "yes", "✗": "no"}
PAIRS = "‖|| ≤<= ≥>= ≠!= →-> ←<- ±+-"
SINGLE = "·* ⋅* ×x −- –- —- ━- ─- ≈~ ∂d ℓl ⟨< ⟩> •* █# │| ‘' ’' “\" ”\" \N{FRACTION SLASH}/"
SIGNS = WORDS | {pair[0]: pair[1:] for pair in (PAIRS + " " + SINGLE).split(" ")}
MARKS = {"<super>": "^", "<sub>": "_"}


def plain(text: str) -> str:
    """Return the text in ASCII; a letter without a plain form becomes a question mark."""
    groups = groupby(text, _place)
    return "".join(MARKS.get(place, "") + "".join(map(_letter, letters)) for place, letters in groups)


def fitting(text: str, encoding: str) -> str:
    """Return the text with plain letters instead of letters that the encoding lacks."""
    return text.encode(encoding, NAME).decode(encoding)


def _place(letter: str) -> str:
    """Return "<super>" or "<sub>" for a raised or lowered letter."""
    return unicodedata.decomposition(letter).partition(" ")[0] if not letter.isascii() else ""


def _letter(letter: str) -> str:
    if letter.isascii():
        return letter
    if letter in SIGNS:
        return SIGNS[letter]
    kind, _, name = unicodedata.name(letter, "").partition(" LETTER ")
    if kind in ("GREEK SMALL", "GREEK CAPITAL"):
        word = name.split()[0].lower().replace("lamda", "lambda")
        return word if kind == "GREEK SMALL" else word.capitalize()
    if unicodedata.combining(letter):  # the hat of an estimate
        return ""
    parts = unicodedata.normalize("NFKD", letter)
    return "?" if parts == letter else "".join(map(_letter, parts))


def _handle(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return plain(error.object[error.start : error.end]), error.end


codecs.register_error(NAME, _handle)
