"""Numbers between 0 and 1."""

from typing import Any

from jax.core import Tracer

from bilevel.checks import as_number, check_positive
from bilevel.words import shown


def check_weight(value: Any, name: str, of: str) -> Any:
    """A positive number of at most 1; a traced value is let through, it has no value yet."""
    check_positive(value, name)
    if not isinstance(value, Tracer) and as_number(value) > 1:  # pyright: ignore[reportOptionalOperand]
        raise ValueError(f"{name} is the weight of {of} and at most 1, not {shown(value)}: pass e.g. 0.1")
    return value
