"""Storage of the outer rule's memory on the host. It is on the device only during the rule's update.

A step is then two programs. The first computes everything except the new x. Its outer rule is `Postponed`,
which returns the gradient. The second is the rule's update. Only then is the rule's memory on the device,
after the step has released its own. This holds for every order in which a compiler fetches arrays.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from bilevel.liveness import Liveness, opened
from bilevel.loop.policies import OnDevice, sharding_on_device
from bilevel.loop.state import RunState
from bilevel.solvers.base import Solver
from bilevel.solvers.rules import Rule
from bilevel.types import PyTree
from bilevel.words import shown

KIND = "pinned_host"


class Postponed(Rule):
    """Rule that leaves the update of `rule` to a second program. Its memory after a step is the gradient."""

    rule: Rule
    later: PyTree  # placeholder for the new point
    told: Callable[[PyTree], PyTree] = eqx.field(static=True, default=lambda gradient: gradient)

    @property
    def constrained(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rule.constrained

    def init(self, point: PyTree) -> tuple[Any, ...]:
        return ()

    def update(
        self, gradient: PyTree, memory: PyTree, point: PyTree, value: Any = None
    ) -> tuple[PyTree, PyTree]:
        return self.later, self.told(gradient)

    def gradient_mapping(self, point: PyTree, gradient: PyTree) -> PyTree:
        return self.rule.gradient_mapping(point, gradient)


def postponed(
    solver: Solver, run: RunState, later: PyTree, *told: Callable[..., Any]
) -> tuple[Solver, RunState]:
    """Return the solver, and a run for it, that leave the update of x to a second program."""
    rule = Postponed(solver.rule("outer"), later, *told)
    return eqx.tree_at(lambda solver: solver.outer, solver, rule), with_memory(run, ())


def with_memory(run: RunState, memory: PyTree, **others: PyTree) -> RunState:
    """Return the run with this memory of its outer rule."""
    change = getattr(run.solver, "_replace", partial(replace, run.solver))
    return replace(run, solver=change(outer=memory, **others))


def check_offload(offload: Any) -> None:
    """Raise unless the device can keep this on the host."""
    if not isinstance(offload, str) or offload != "outer":
        raise ValueError(f'offload must be "outer" or None, not {shown(offload)}')
    device = jax.devices()[0]
    kinds = sorted(memory.kind for memory in device.addressable_memories())
    if KIND not in kinds:
        raise ValueError(
            f'offload="outer" needs a device that reads the host\'s memory of the kind {KIND}, but {device} has '
            f"{', '.join(kinds)} alone: leave it out"
        )


def check_offloadable(solver: Solver, run: RunState, step: Callable[..., Any]) -> None:
    """Raise if the outer rule stores no array, or if `step(solver, run)` does not move x once, at its end."""
    memory = getattr(run.solver, "outer", ())
    if solver.rule("outer") is None or not any(leaf.ndim for leaf in jax.tree.leaves(memory)):
        raise ValueError(
            'offload="outer" moves what the outer rule remembers to the host, and this one remembers no array, but '
            "single numbers at most: leave it out (x and its gradient are needed on the device at every step)"
        )
    moves = []

    def all_but_x(later: PyTree, remembered: PyTree) -> PyTree:
        told = lambda gradient: moves.append(gradient) or remembered
        after, *others = step(*postponed(solver, run, later, told))
        return (after.x, after.solver.outer), with_memory(after, None, x=None), others

    try:
        program = jax.make_jaxpr(all_but_x)(run.x, run.x)  # the memory on the host is not part of it
        last = len(moves) == 1 and _ends_with_its_inputs(program)
    except Exception as error:
        jax.eval_shape(partial(step, solver), _shapes(run))  # raises errors that offloading did not cause
        raise ValueError(f"{_early(solver)} ({type(error).__name__}: {error})") from error
    if not last:
        raise ValueError(_early(solver))
    try:
        jax.eval_shape(solver.rule("outer").update, *_shapes((run.x, memory, run.x)))
    except TypeError as error:
        raise ValueError(
            'offload="outer" moves x without the objectives at hand, and this outer rule asks for their value: leave '
            f"it out, or take another rule ({error})"
        ) from error


def _ends_with_its_inputs(program: Any) -> bool:
    """Return whether the inputs are the first outputs, unchanged, and no other output depends on them."""
    jaxpr, _ = opened(program)
    given = len(jaxpr.invars)
    wanted = (False,) * given + (True,) * (len(jaxpr.outvars) - given)
    same = all(a is b for a, b in zip(jaxpr.invars, jaxpr.outvars, strict=False))
    return same and not any(Liveness().of(program, wanted)[1])


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _early(solver: Solver) -> str:
    return (
        f'offload="outer" moves x after the step, but {solver.name}, or the record, uses the new x or the memory of '
        "its rule within it, or moves x twice: leave it out, or record by a hook"
    )


class OnHost(OnDevice):
    """Policy that keeps the outer rule's memory on the host between steps."""

    offloads = True

    def fetched(self, run: RunState) -> RunState:
        memory = getattr(run.solver, "outer", ())
        return with_memory(run, _on_device(memory)) if any(map(_on_host, jax.tree.leaves(memory))) else run

    def stored(self, run: RunState) -> RunState:
        """Move the outer rule's memory to the host and wait: until then both have a copy."""
        if not hasattr(run.solver, "outer"):
            return run
        put = lambda leaf: jax.device_put(leaf, leaf.sharding.with_memory_kind(KIND)) if leaf.ndim else leaf
        return with_memory(run, jax.block_until_ready(jax.tree.map(put, run.solver.outer)))

    def copied(self, run: RunState) -> RunState:
        return jax.tree.map(lambda leaf: leaf if _on_host(leaf) else jnp.copy(leaf), run)


def in_two(
    one: Callable[..., Any], chunk: Any, warm_up: Callable[..., Any], update: Callable[..., Any]
) -> tuple[Callable[..., Any], Any, Callable[..., Any]]:
    """Return calls for whole runs, made from calls without the outer rule's memory and from `update`."""

    def both(leaves: list[Any], run: RunState, *rest: Any) -> tuple[Any, ...]:
        after, *others = one(leaves, with_memory(run, ()), *rest)
        gradient = jax.block_until_ready(after.solver.outer)  # wait, so that the memory arrives later
        x, memory = update(leaves, after.x, gradient, _on_device(run.solver.outer))
        after = with_memory(after, memory, x=x)
        del gradient, memory
        return OnHost().stored(after), *others

    def warm(leaves: list[Any], run: RunState, *rest: Any) -> RunState:
        return with_memory(warm_up(leaves, with_memory(run, ()), *rest), run.solver.outer)

    return both, chunk, warm


def _on_device(memory: PyTree) -> PyTree:
    put = lambda leaf: jax.device_put(leaf, sharding_on_device(leaf)) if _on_host(leaf) else leaf
    return jax.tree.map(put, memory)


def _on_host(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.sharding.memory_kind == KIND
