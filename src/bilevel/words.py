"""What a value looks like in an error message, or a text when printed: short, and never an error of its own."""

import sys
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

LONGEST = 80
PLAIN = {
    "→": "->",
    "…": "...",
    "–": "-",
    "‖": "|",
    "≈": "~",
    "∇": "grad ",
    "Φ": "Phi",
    "κ": "kappa",
    "μ": "mu",
    "α": "alpha",
    "β": "beta",
}
MOST = 8  # arrays that are listed


def shown(value: Any) -> str:
    """`repr(value)` on one line, cut off where it is long; the type where there is none (a deleted array)."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        digits = isinstance(value, int)  # Python refuses to write out thousands of them
        text = "a whole number of thousands of digits" if digits else f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"


def printable(text: str, stream: Any = None) -> str:
    """In letters that standard output, or another stream, has: under LANG=C, or piped on Windows, `print` raises for
    others."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        plain = text.translate(str.maketrans(PLAIN))
        return plain.encode(encoding, "backslashreplace").decode(encoding)


def one_line(name: str) -> str:
    """A name of the user's, with escapes for whatever breaks a line or a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(one_line, names))


def described(tree: Any) -> Any:
    """The tree with dtypes and shapes in place of its arrays."""
    return jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", tree)


def shapes(tree: Any) -> str:
    """Its arrays by their places, without what else a module holds."""
    leaves = [(path, described(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
    each = [
        f"{jax.tree_util.keystr(path, simple=True, separator='.')} {leaf}".strip() for path, leaf in leaves
    ]
    total = sum(jnp.size(leaf) for leaf in jax.tree.leaves(tree))
    more = f", … {len(each) - MOST:,} more arrays" if len(each) > MOST else ""
    return (f"{total:,} numbers: " if len(each) > 1 else "") + ", ".join(each[:MOST]) + more
