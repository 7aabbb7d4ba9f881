"""Data that are made anew at every step, from a key and the number of the step alone: step k always has the same."""

from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp

from bilevel.batch import Batch


class FreshStream:
    """A stream: `start(step)` says where it stands, `next` gives the batch there, which `batch` makes from a key."""

    key: Any

    def start(self, step: int) -> Any:
        return jnp.uint32(step)

    def next(self, cursor: Any) -> tuple[Any, Batch]:
        return cursor + jnp.uint32(1), self.batch(jax.random.fold_in(self.key, cursor))

    @abstractmethod
    def batch(self, key: Any) -> Batch: ...
