"""Numbers between 0 and 1."""

from jax.core import Tracer

from bilevel.checks import check_positive
from bilevel.types import Number


def check_weight(value: Number, name: str, of: str) -> Number:
    """A positive number of at most 1; a traced value is let through, it has no value yet."""
    check_positive(value, name)
    if not isinstance(value, Tracer) and value > 1:
        raise ValueError(f"{name} is the weight of {of} and at most 1, not {value!r}: pass e.g. 0.1")
    return value
