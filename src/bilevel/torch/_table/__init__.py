"""Translations of ATen operations into JAX, one file per family."""

from bilevel.torch._table import (  # they fill the table  # noqa: F401
    arithmetic,
    attention,
    convolutions,
    creation,
    functions,
    indexing,
    losses,
    matrices,
    normalizations,
    pooling,
    randomness,
    recurrent,
    reductions,
    resampling,
    shapes,
)
from bilevel.torch._table.registry import TABLE as TABLE, Entry as Entry, register as register
