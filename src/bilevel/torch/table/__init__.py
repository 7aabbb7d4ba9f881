"""Translations of ATen operations into JAX, one file per family."""

from bilevel.torch.table import (  # they fill the table  # noqa: F401
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
from bilevel.torch.table.registry import TABLE as TABLE, Entry as Entry, register as register
