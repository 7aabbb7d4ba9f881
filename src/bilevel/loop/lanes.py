"""Arguments of the runs of a sweep: stacked where they differ, stored once where they do not."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.arrays import as_arrays
from bilevel.checks import check_batch, check_callable, check_choice, check_seed, variables
from bilevel.loop.data.streams import FullBatch, Minibatches, as_stream
from bilevel.solvers.base import Solver
from bilevel.solvers.optax_rules import fix_numbers
from bilevel.types import PyTree
from bilevel.words import shown


@dataclass(frozen=True)
class Lane:
    """One run of a sweep: positions in the lists of solvers, starts and data, and a seed."""

    solver: int
    start: int
    data: int
    seed: int


@dataclass(frozen=True)
class Lanes:
    """Arguments of all lanes. Equal ones are stored once."""

    lanes: list[Lane]
    solvers: list[Solver]
    arguments: tuple[
        Any, ...
    ]  # (solver leaves, x0, y0, stream, seed, model state), stacked where lanes differ
    axes: tuple[Any, ...]  # the axes along which they are stacked
    structure: Any  # of the solvers

    @classmethod
    def of(
        cls,
        solvers: Any,
        x0: Any,
        y0: Any,
        starts: Any,
        data: Any,
        seeds: Any,
        model_state: Any,
        combine: Any,
    ) -> "Lanes":
        given = solvers
        solvers = list(solvers) if isinstance(solvers, Sequence) else [solvers]
        if not solvers or not all(isinstance(solver, Solver) for solver in solvers):
            raise TypeError(
                f"solvers must be a solver such as bl.aid(...), or a list of them, not {shown(given)}: pass e.g. "
                "[bl.aid(problem, inner=0.1, adjoint=0.1, outer=beta) for beta in (0.01, 0.1)]"
            )
        if len({jax.tree.structure(solver) for solver in solvers}) > 1:
            raise ValueError(
                "the solvers of a sweep may differ in their numbers only, but these have different problems, rules or "
                "loop lengths: make all of them from one problem, write the numbers that differ as floats (1.0, not "
                "1), and give all of them the same function objects as schedules, projections or masks"
            )
        fixed = fix_numbers(solvers)
        if (starts is None) == (x0 is None or y0 is None):
            raise ValueError("a sweep needs a start: pass x0 and y0, or starts=[(x0, y0), ...], and not both")
        for name, given in (("starts", starts), ("seeds", seeds)):
            if isinstance(given, Sequence) and not len(given):
                raise ValueError(f"{name} is empty: give at least one, or leave it out")
        begins = [variables(pair[0], pair[1]) for pair in ([(x0, y0)] if starts is None else _pairs(starts))]
        model = as_arrays(model_state, "model_state")
        array = isinstance(seeds, np.ndarray) and seeds.ndim == 1
        many = array or (isinstance(seeds, Sequence) and not isinstance(seeds, str | bytes))
        seeds = [int(check_seed(seed)) for seed in (seeds if many else [seeds])]
        by_seed = callable(data) and not hasattr(data, "next")
        if by_seed:
            check_callable(
                data, "data", 1, "a function from a seed to a stream", "lambda seed: bl.iid(data, 8, seed)"
            )
        if isinstance(data, list) and not data:
            raise ValueError("data is an empty list: give at least one, or leave it out")
        given = data if isinstance(data, list) else [None] if by_seed else [data]
        streams = [] if by_seed else [as_stream(each) for each in given]
        for stream in streams:
            if isinstance(stream, FullBatch):
                check_batch(solvers[0].problem, stream.data)
        lists = [range(len(solvers)), range(len(begins)), range(len(given)), range(len(seeds))]
        lanes = [Lane(s, b, d, seeds[k]) for s, b, d, k in _combined(lists, combine)]
        if by_seed:
            made = {seed: _made(cast(Callable[..., Any], data), seed) for seed in dict.fromkeys(seeds)}
            common = next(iter(made.values()))
            if isinstance(common, Minibatches):  # store equal arrays once
                made = {seed: _sharing(stream, common) for seed, stream in made.items()}
            of_lane = [as_stream(made[lane.seed]) for lane in lanes]
        else:
            of_lane = [streams[lane.data] for lane in lanes]
        arguments, axes = _stack(
            [
                (
                    jax.tree.leaves(fixed[lane.solver]),
                    *begins[lane.start],
                    stream,
                    np.uint32(lane.seed),
                    model,
                )
                for lane, stream in zip(lanes, of_lane, strict=True)
            ]
        )
        return cls(
            lanes, [solvers[lane.solver] for lane in lanes], arguments, axes, jax.tree.structure(fixed[0])
        )


def _made(data: Callable[..., Any], seed: int) -> Any:
    try:
        return data(seed)
    except Exception as error:
        raise TypeError(f"data is a function of a seed, and raises at seed {seed}: {error}") from error


def _pairs(starts: Any) -> list[Any]:
    fits = isinstance(starts, Sequence) and not isinstance(starts, str | bytes)
    if not fits or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in starts):
        raise TypeError(f"starts must be a list of pairs (x0, y0), not {shown(starts)}: pass e.g. [(x0, y0)]")
    return [(x0, y0) for x0, y0 in cast(Any, starts)]


def _sharing(stream: Any, common: Minibatches) -> Any:
    """Replace the stream's arrays by the equal ones of `common`."""
    ours, theirs = (jax.tree.leaves(getattr(each, "data", None)) for each in (stream, common))
    same = len(ours) == len(theirs) and all(
        a is b or (a.shape == b.shape and a.dtype == b.dtype and bool(jnp.array_equal(a, b)))
        for a, b in zip(ours, theirs, strict=True)
    )
    return replace(stream, data=common.data) if same and isinstance(stream, Minibatches) else stream


def _combined(lists: list[range], combine: str) -> list[tuple[int, ...]]:
    if check_choice(combine, "combine", ("product", "zip")) == "product":
        return list(itertools.product(*lists))
    longest = max(map(len, lists))
    if any(len(each) not in (1, longest) for each in lists):
        raise ValueError(
            f'combine="zip" takes lists of one length, but there are {", ".join(str(len(each)) for each in lists)} '
            'solvers, starts, data and seeds: make them as long as each other, or combine="product"'
        )
    return [tuple(each[i % len(each)] for each in lists) for i in range(longest)]


def _stack(lanes: list[PyTree]) -> tuple[PyTree, PyTree]:
    """Stack the lanes' trees, except for leaves that are equal in all. Also return the axes, 0 or None."""
    flat, structures = zip(*map(jax.tree.flatten, lanes), strict=True)
    shapes = [[(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves] for leaves in flat]
    if any(other != structures[0] for other in structures) or any(other != shapes[0] for other in shapes):
        raise ValueError(
            "the lanes of a sweep must have the same shapes of x, y and data: run other shapes one by one"
        )
    columns = list(zip(*flat, strict=True))
    same = [all(each is column[0] or _equal(each, column[0]) for each in column) for column in columns]
    stacked = [
        column[0] if one else jnp.stack([jnp.asarray(each) for each in column])
        for one, column in zip(same, columns, strict=True)
    ]
    return structures[0].unflatten(stacked), structures[0].unflatten([None if one else 0 for one in same])


def _equal(a: Any, b: Any) -> bool:
    return isinstance(a, int | float | np.number) and isinstance(b, int | float | np.number) and bool(a == b)
