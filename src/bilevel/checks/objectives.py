"""Checks that the objectives, the data and the variables fit together."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.batch import Batch, Draws, Levels, first
from bilevel.checks.data import check_finite_arrays, floating_arrays, signature, variables
from bilevel.checks.derivatives import no_first
from bilevel.checks.values import check_problem, is_ours
from bilevel.forks import check_fork
from bilevel.problem import Evaluated, Objective, Problem
from bilevel.types import PyTree
from bilevel.words import described, shapes


def prepare(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    batch: Batch | Draws | None,
    names: tuple[str, str] = ("x0", "y0"),
) -> tuple[PyTree, PyTree]:
    """Return x0 and y0 as trees of JAX arrays; raise if they, the data and the objectives do not fit together."""
    check_fork()
    check_problem(problem)
    x, y = variables(x0, y0, names)
    batch = first(batch)
    check_batch(problem, batch)
    problem.kept("checked", signature((x, y, batch)), (), lambda: _check_objectives(problem, x, y, batch))
    return x, y


def returns_more(problem: Problem, x: PyTree, y: PyTree, batch: Batch | Draws | None) -> Levels:
    """Return for each level whether its objective returns metrics or a state at such arguments."""
    batch = first(batch)
    at = x, y, batch
    look = lambda: Levels(*(_has_more(jax.eval_shape(each.evaluate, *at)) for each in (problem.g, problem.f)))
    return problem.kept("returned", signature(at), (), look)


def _check_objectives(problem: Problem, x: PyTree, y: PyTree, batch: Batch | None) -> None:
    found = []
    for objective in (problem.g, problem.f):
        _check_extras(objective, batch)
        found.append(_has_more(_check_value(objective, x, y, batch)))
    problem.kept("returned", signature((x, y, batch)), (), lambda: Levels(*found))
    _check_gradient(problem, x, y, batch)
    _check_prox(problem, x, y)


def _has_more(out: Evaluated) -> bool:
    return bool(out.metrics) or out.state is not None


def _check_prox(problem: Problem, x: PyTree, y: PyTree) -> None:
    if problem.prox is None:
        return
    try:
        out = jax.eval_shape(lambda x, y: problem.prox(x, y, 0.5), x, y)  # pyright: ignore[reportOptionalCall]
    except TypeError as error:
        raise TypeError(f"prox must take (x, z, step) and return the new y: {error}") from error
    if signature(out) != signature(y):
        raise TypeError(
            f"prox returned {described(out)}, not a tree like y, {described(y)}: return the new y, in the dtype "
            "of z"
        )


def prepare_inner(problem: Problem, x: PyTree, batch: Batch) -> PyTree:
    """Return x as a tree of JAX arrays; raise if it, as both variables, and the data do not fit g."""
    x = floating_arrays(x, "x")
    check_finite_arrays({"x": x})
    _check_extras(problem.g, batch)
    _check_value(problem.g, x, x, batch)
    return x


def check_batch(problem: Problem, batch: Any) -> None:
    """Raise if a level gets data that its objective does not take, or lacks data that it needs."""
    batch = first(batch) if isinstance(batch, Draws) else batch
    if batch is not None and not isinstance(batch, Batch):
        raise TypeError(
            f"data must be a bl.Batch, not {type(batch).__name__}: pass bl.Batch(inner=..., outer=...)"
        )
    if batch is not None and batch.shared is not None and "shared" not in problem.wants:
        raise ValueError(
            "the data have a shared part, but neither objective asks for it: let one take the keyword `shared`, as in "
            "(x, y, batch, *, shared), or leave shared= out of bl.Batch"
        )
    for objective in (problem.f, problem.g):
        level = objective.level
        given = batch is not None and getattr(batch, level) is not None
        if objective.batch == "required" and not given:
            raise ValueError(
                f"the {level} objective takes (x, y, batch), but no {level} data were given: "
                f"pass data=bl.Batch({level}=...)"
            )
        if objective.batch == "never" and given:
            raise ValueError(
                f"the {level} objective takes only (x, y), but {level} data were given: "
                f"let it take (x, y, batch), or leave {level}= out of bl.Batch"
            )


def _check_extras(objective: Objective, batch: Batch | None) -> None:
    """Raise if a keyword without a default has no value."""
    given = objective.read_extras(batch)
    how = {
        "key": "bl.run and bl.start supply it; by hand, pass bl.Batch(..., key=jax.random.key(0))",
        "rows": "bl.run, bl.epochs and bl.iid supply them for arrays with one row per example; from a loader, or by "
        "hand, pass bl.Batch(..., rows=bl.Levels(inner=..., outer=...))",
        "shared": "pass bl.Batch(..., shared=...)",
        "state": "pass model_state=... to bl.run or bl.start, or by hand bl.Batch(..., state=...)",
    }
    for name in sorted(objective.needs):
        if given[name] is None:
            raise ValueError(
                f"the {objective.level} objective asks for `{name}`, but there is none: {how[name]}"
            )


def _check_value(objective: Objective, x: PyTree, y: PyTree, batch: Batch | None) -> Evaluated:
    try:
        out = value, metrics, state = jax.eval_shape(lambda *at: _of_arrays(objective, *at), x, y, batch)
    except (TypeError, ValueError, IndexError) as error:
        if is_ours(error):
            raise
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(
            f"the {objective.level} objective cannot be evaluated at x of {shapes(x)} and y of {shapes(y)}"
            f"{_seeing(objective, batch)}, where it raises {type(error).__name__} in the line shown above: {error}"
            f"{_by_rows(objective, x, y, batch)}"
        ) from error
    except Exception as error:  # raised in a library of models: only the arguments are added
        error.add_note(
            f"Raised by the {objective.level} objective at x of {shapes(x)} and y of {shapes(y)}"
            f"{_seeing(objective, batch)}."
        )
        raise
    is_scalar = lambda value: isinstance(value, jax.ShapeDtypeStruct) and value.shape == ()
    shape = lambda value: jax.tree.map(lambda leaf: leaf.shape, value)
    if not is_scalar(value):
        raise ValueError(
            f"the {objective.level} objective must return a scalar, but returns {shape(value)}: "
            "reduce it, e.g. with jnp.mean(...)"
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(
            f"the {objective.level} objective must return a floating scalar, but returns {value.dtype}"
        )
    for name, metric in metrics.items():
        if not is_scalar(metric):
            raise ValueError(
                f"the {objective.level} objective's metrics must be scalars by name, but {name!r} is {shape(metric)}: "
                "reduce it, e.g. with jnp.mean(...)"
            )
    if state is not None:
        _check_same(None if batch is None else batch.state, state)
    return Evaluated(*out)


def _seeing(objective: Objective, batch: Batch | None) -> str:
    data = None if batch is None else getattr(batch, objective.level)
    return "" if data is None else f", on a batch of {described(data)}"


def _by_rows(objective: Objective, x: PyTree, y: PyTree, batch: Batch | None) -> str:
    """Return the remedy if x has an entry for every example and the batch has fewer rows, else ""."""
    rows = None if batch is None else getattr(batch.rows, objective.level)
    if rows is None or "rows" in objective.extras:
        return ""
    longer = lambda leaf: leaf.ndim > 0 and len(leaf) > len(rows)
    if not any(map(longer, jax.tree.leaves(x))):
        return ""
    of_batch = jax.tree.map(lambda leaf: leaf[: len(rows)] if longer(leaf) else leaf, x)
    try:
        jax.eval_shape(lambda *at: _of_arrays(objective, *at), of_batch, y, batch)
    except Exception:  # more rows would not help
        return ""
    hint = f"let {objective.level}(x, y, batch, *, rows) ask for their rows, and take x[rows]"
    return f" If x has an entry for every example, and the batch {len(rows)} of them: {hint}"


def _of_arrays(objective: Objective, x: PyTree, y: PyTree, batch: Batch | None) -> Evaluated:
    """Return the values of the objective; raise if one of them is not an array."""
    out = objective.evaluate(x, y, batch)
    parts = {"a loss": out.loss} | {f"the metric {name!r}": value for name, value in out.metrics.items()}
    for what, part in parts.items():
        for leaf in jax.tree.leaves(part):
            if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
                raise TypeError(
                    f"the {objective.level} objective returned {what} that is a {type(leaf).__name__}: "
                    "return a scalar array"
                )
    if unnamed := [name for name in out.metrics if not isinstance(name, str)]:
        raise TypeError(
            f"the {objective.level} objective's metrics must be scalars by name, but {unnamed[0]!r} is a "
            f"{type(unnamed[0]).__name__}: name it by a string"
        )
    return out


def _check_same(before: PyTree, after: PyTree) -> None:
    """Raise if the model's state changes its shape from step to step."""
    if before is None:
        raise ValueError(
            "the inner objective was given no state and returned one: pass model_state=... to bl.run or bl.start, or "
            "return None in its place"
        )
    if signature(before) == signature(after):
        return
    both = [described(before), described(after)]
    raise ValueError(
        f"the inner objective was given a state of {both[0]} and returned one of {both[1]}: it must return the same "
        "tree, shapes and dtypes"
    )


def _check_gradient(problem: Problem, x: PyTree, y: PyTree, batch: Batch | None) -> None:
    """Raise if ∇_y g is not shaped like y, as with a faulty oracle or custom derivative."""
    try:
        gradient = jax.eval_shape(problem.oracles.inner_gradient, x, y, batch)
    except Exception as error:
        raise no_first(problem.g, (x, y, batch), error) from error
    structures = jax.tree.structure(gradient), jax.tree.structure(y)
    if structures[0] != structures[1]:
        raise ValueError(
            f"∇_y g has the tree {structures[0]}, but y0 has {structures[1]}: the inner gradient must be shaped like y"
        )
    named, _ = jax.tree_util.tree_flatten_with_path(y)
    for (path, leaf), grad in zip(named, jax.tree.leaves(gradient), strict=True):
        if (leaf.shape, leaf.dtype) != (grad.shape, grad.dtype):
            raise ValueError(
                f"∇_y g at y0{jax.tree_util.keystr(path)} is {grad.dtype}{list(grad.shape)}, but y0 there is "
                f"{leaf.dtype}{list(leaf.shape)}: the inner gradient must be shaped like y"
            )
