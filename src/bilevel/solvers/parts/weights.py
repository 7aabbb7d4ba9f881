"""Numbers between 0 and 1."""

from typing import Any

from jax.core import Tracer

from bilevel.checks import as_number, check_positive
from bilevel.words import shown


def check_weight(value: Any, name: str, of: str) -> Any:
    """Return a positive number of at most 1, or a traced value, which has no value yet; raise for others."""
    check_positive(value, name)
    if not isinstance(value, Tracer) and as_number(value) > 1:  # pyright: ignore[reportOptionalOperand]
        raise ValueError(f"{name} is the weight of {of} and at most 1, not {shown(value)}: pass e.g. 0.1")
    return value
