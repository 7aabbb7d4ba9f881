# pyright: strict
"""The library as a user's type checker sees it: `pyright` finds nothing to say here, and every type is what is stated.

python tests/typed/user.py runs it, too. What is read out of JAX, optax and scikit-learn has the types that those give.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import optax  # pyright: ignore[reportMissingTypeStubs]  (optax says nothing of its types)
from matplotlib.axes import Axes

import bilevel as bl
from bilevel import theory
from bilevel.hooks import Event, Stop
from bilevel.sklearn import PerFeatureRidge, ReweightedClassifier
from bilevel.solvers.algorithms.aid import AID
from bilevel.solvers.algorithms.itd import ITD
from bilevel.solvers.algorithms.tuning_free import TuningFree
from bilevel.theory import Certificate, StepSizes

Rows = tuple[jax.Array, jax.Array]


def inner(x: jax.Array, y: jax.Array, batch: Rows, *, rows: jax.Array) -> jax.Array:
    a, b = batch
    return jnp.mean(jax.nn.sigmoid(x[rows]) * (a @ y - b) ** 2) + 1e-2 * jnp.sum(y**2)


def outer(x: jax.Array, y: jax.Array, batch: Rows) -> tuple[jax.Array, dict[str, jax.Array]]:
    errors = batch[0] @ y - batch[1]
    return jnp.mean(errors**2), {"worst": jnp.max(jnp.abs(errors))}


def onto(x: jax.Array) -> jax.Array:
    return jnp.clip(x, -1.0, 1.0)


# A problem, its data and its start.
a = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
train, valid = (a[:12], a[:12].sum(axis=1)), (a[12:], a[12:].sum(axis=1))
problem = assert_type(bl.Problem(inner=inner, outer=outer), bl.Problem)
data = assert_type(bl.Batch(inner=train, outer=valid), bl.Batch)
x0, y0 = np.zeros(12, np.float32), np.zeros(3, np.float32)

# Solvers, of numbers and of optax's rules.
aid = assert_type(bl.aid(problem, inner=0.1, adjoint=0.1, outer=optax.adam(1e-2)), AID)
itd = assert_type(bl.itd(problem, inner=0.1, outer=1.0, inner_steps=2), ITD)
free = assert_type(bl.tuning_free(problem), TuningFree)
exact: bl.Solver = bl.aid(problem, inner=0.1, adjoint=bl.adjoints.cg(max_steps=3), outer=1.0)
damped: bl.Adjoint = bl.adjoints.damped(bl.adjoints.minres(max_steps=5), 0.1)
boxed: bl.Rule = bl.projected(1.0, onto)


# Running.
def stop(event: Event) -> Stop | None:
    assert_type(event.step, int)
    assert_type(event.trace, dict[str, Any])
    return Stop("that is enough") if event.step > 1000 else None


def keep(state: Any, info: bl.Info) -> dict[str, jax.Array]:
    return {"norm": jnp.linalg.norm(state.x)}


best = bl.hooks.Best("outer/worst")
result = bl.run(
    aid, x0, y0, data=data, steps=4, options=bl.RunOptions(every=2), hooks=[best, stop], record=keep
)
assert_type(result, bl.Result)
assert_type(result.status, bl.Status)
assert_type(result.status.code, bl.Code)
assert_type(result.status.message, str)
assert_type(result.steps, int)
assert_type(result.seconds, float)
assert_type(result.trace, dict[str, Any])
assert_type(result.run, bl.RunState)
assert_type(best.value, float)
assert_type(best.step, int)
on = assert_type(bl.run(aid, data=data, steps=2, resume=result, record=keep), bl.Result)
small = bl.epochs(data, 4)
assert_type(bl.run(itd, x0, y0, data=small, steps=2, seed=1).status.code.exit_status, int)
assert_type(bl.run(free, x0, y0, data=data, steps=2), bl.Result)

with TemporaryDirectory() as folder:
    path = Path(folder)
    bl.run(exact, x0, y0, data=data, steps=2, hooks=[bl.hooks.CSV(path / "trace.csv")])

# Many at once, and inside jit.
found = bl.sweep(
    [bl.aid(problem, inner=0.1, adjoint=0.1, outer=beta) for beta in (0.1, 1.0)], x0, y0, data=data, steps=3
)
assert_type(found, bl.Sweep)
assert_type(found.best, int | None)
assert_type(found[0], bl.Result)
assert_type(found.status, list[bl.Status])
lane = found.solvers[found.best] if found.best is not None else None
assert_type(lane, bl.Solver | None)
state = assert_type(bl.start(aid, x0, y0, data), bl.RunState)
state, trace = bl.scan(aid, state, data, steps=2)
assert_type(state, bl.RunState)
values: Mapping[str, jax.Array] = trace

# Certificates and advice.
constants = theory.Constants(mu=0.1, L=1.0, M=0.1, rho=0.1)
paper, star = theory.aid(constants), theory.star.aid(constants)
certificates: list[Certificate] = [paper, star]
sizes = [assert_type(one.step_sizes(1000, 1.0), StepSizes) for one in certificates]
whole = bl.Batch(inner=train, outer=valid, rows=bl.Levels(inner=np.arange(12)))
advice = assert_type(bl.advise(problem, x0, y0, whole), bl.Advice)
assert_type(advice.practical, StepSizes)
assert_type(advice.recommendation, str)
counts = assert_type(bl.oracle_calls(aid, state, data, steps=2), bl.Counts)

# Pictures.
assert_type(bl.plot.trace(result), np.ndarray)
assert_type(bl.plot.sweep(found), Axes)
assert_type(bl.plot.certificate({"paper": paper, "star": star}, steps=1000, gap=1.0), Axes)

# Data and estimators.
digits = assert_type(bl.data.mnist(), bl.data.Mnist)
targets = a.sum(axis=1)
ridge = assert_type(PerFeatureRidge(cv=3, max_iter=2).fit(a, targets), PerFeatureRidge)
assert_type(ridge.predict(a), np.ndarray)
assert_type(ridge.alpha_, np.ndarray)
weighed = assert_type(ReweightedClassifier(max_iter=2).fit(a, targets > 0), ReweightedClassifier)
assert_type(weighed.suspects_, np.ndarray)
