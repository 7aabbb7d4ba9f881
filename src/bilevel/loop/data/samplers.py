"""Samplers of minibatch rows. A sampler is a pytree: its key is an argument of compiled programs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from bilevel.types import PyTree


class Sampler(eqx.Module):
    """Sampler of `size` rows: `start(step) -> cursor` and `next(cursor) -> (cursor, rows)`."""

    key: PyTree  # an axis in the axes of a sweep
    examples: int = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def take(self, arrays: PyTree, rows: jax.Array) -> PyTree:
        """Return the given rows of every array."""
        # With "fill", an index out of range gives NaN instead of a repeated example.
        return jax.tree.map(lambda a: jnp.take(a, rows, axis=0, mode="fill"), arrays)

    def block(self, rows: jax.Array) -> jax.Array | None:
        """Return the number of the fixed block with these rows, or None if there are no blocks."""
        return None


class Independent(Sampler):
    """Sampler with replacement at every step. The cursor is the step number."""

    def start(self, step: int) -> jax.Array:
        return _counter(step)

    def next(self, cursor: jax.Array) -> tuple[jax.Array, jax.Array]:
        key = jax.random.fold_in(self.key, cursor)
        return cursor + 1, jax.random.randint(key, (self.size,), 0, self.examples)


class Shuffled(Sampler):
    """Sampler of slices from one random permutation after another.

    Every example appears exactly once per epoch. If `size` does not divide the number of examples, a batch
    may span two epochs. So all batches have one shape and no example is lost. The cursor is (epoch, position,
    order), where `order` is this epoch's permutation followed by the next one's. The position may be just
    behind the epoch. Permutations are functions of the epoch. The cursor stores them to compute each once.
    """

    def start(self, step: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        epoch, position = divmod(int(step) * self.size, self.examples)
        order = jnp.concatenate([self._permutation(_counter(epoch)), self._permutation(_counter(epoch + 1))])
        return _counter(epoch), jnp.int32(position), order

    def next(self, cursor: tuple[Any, ...]) -> tuple[tuple[Any, ...], jax.Array]:
        # The predicate depends only on the step, so under vmap over seeds this stays a branch, not a select.
        # It comes first: XLA runs a branch without dependents in another thread, which costs more than the
        # branch.
        turn = lambda *cursor: self._turn(*cursor)  # JAX hashes functions; a module's methods have no hash
        cursor = lax.cond(cursor[1] >= self.examples, turn, lambda *same: same, *cursor)
        epoch, position, order = cursor
        return (epoch, position + self.size, order), lax.dynamic_slice(order, (position,), (self.size,))

    def _turn(self, epoch: jax.Array, position: jax.Array, order: jax.Array) -> tuple[Any, ...]:
        following = jnp.concatenate([order[self.examples :], self._permutation(epoch + 2)])
        return epoch + 1, position - self.examples, following

    def _permutation(self, epoch: Any) -> jax.Array:
        return jax.random.permutation(jax.random.fold_in(self.key, epoch), self.examples)


class Blocks(Sampler):
    """Sampler of consecutive slices, cut once. Every epoch takes each once, in random order."""

    def __check_init__(self) -> None:
        if left := self.examples % self.size:
            raise ValueError(
                f"blocks of {self.size} leave {left} of the {self.examples} examples over, and all must have one "
                f"shape: choose a size that divides {self.examples}, or leave {left} examples out"
            )

    @property
    def order(self) -> Shuffled:
        return Shuffled(self.key, self.examples // self.size, 1)

    def start(self, step: int) -> tuple[Any, ...]:
        return self.order.start(step)

    def next(self, cursor: tuple[Any, ...]) -> tuple[tuple[Any, ...], jax.Array]:
        cursor, number = self.order.next(cursor)
        return cursor, self.size * number.astype(jnp.int32) + lax.iota(jnp.int32, self.size)

    def take(self, arrays: PyTree, rows: jax.Array) -> PyTree:
        return jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, rows[0], self.size), arrays)  # no gather

    def block(self, rows: jax.Array) -> jax.Array:
        return rows[..., 0] // self.size


def _counter(number: int) -> jax.Array:
    """Return a step or epoch number modulo 2³²."""
    return jnp.uint32(int(number) % 2**32)
