"""Values in error messages, and text for terminals: short, and without raising errors."""

import sys
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

LONGEST = 80
PLAIN = {
    "→": "->", "…": "...", "–": "-", "‖": "|", "≈": "~", "∇": "grad ",
    "Φ": "Phi", "κ": "kappa", "μ": "mu", "α": "alpha", "β": "beta",
}  # fmt: skip
MOST = 8  # arrays that are listed


def shown(value: Any) -> str:
    """Return `repr(value)` on one line, shortened; the type if `repr` raises, as for a deleted array."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        digits = isinstance(value, int)  # Python refuses to write out thousands of them
        text = "a whole number with thousands of digits" if digits else f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 2]} …"


def printable(text: str, stream: Any = None) -> str:
    """Return the text in letters of standard output or another stream; `print` raises for other letters."""
    encoding = getattr(stream or sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
        return text
    except UnicodeEncodeError:
        plain = text.translate(str.maketrans(PLAIN))
        return plain.encode(encoding, "backslashreplace").decode(encoding)


def one_line(name: str) -> str:
    """Return a name with escapes for line breaks and control characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(one_line, names))


def described(tree: Any) -> Any:
    """Return the tree with dtypes and shapes in place of its arrays."""
    return jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", tree)


def shapes(tree: Any) -> str:
    """Return the dtypes and shapes of the arrays of a tree, by their paths."""
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    each = [f"{name(path)} {described(leaf)}".strip() for path, leaf in leaves]
    total = sum(jnp.size(leaf) for leaf in jax.tree.leaves(tree))
    more = f", … {len(each) - MOST:,} more arrays" if len(each) > MOST else ""
    return (f"{total:,} numbers: " if len(each) > 1 else "") + ", ".join(each[:MOST]) + more
