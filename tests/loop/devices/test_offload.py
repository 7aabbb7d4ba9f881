"""The memory of x's rule on the host but for its update: the same run, to rounding."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.loop.devices import offload
from bilevel.solvers.rules import as_rule
from run_options import with_options

N = 50


@pytest.fixture(autouse=True)
def _as_people_have_it():
    with jax.numpy_dtype_promotion("standard"):
        yield


def setting(step=0.1):
    rng = np.random.default_rng(0)
    rows = lambda n: (jnp.asarray(rng.normal(size=(n, 3))), jnp.asarray(rng.normal(size=n)))
    fit = lambda y, data: (data[0] @ y - data[1]) ** 2
    inner = lambda x, y, data: jnp.mean(jax.nn.sigmoid(x) * fit(y, data)) + 0.1 * jnp.sum(y**2)
    outer = lambda x, y, data: jnp.mean(fit(y, data))
    solver = bl.aid(bl.Problem(inner=inner, outer=outer), inner=step, adjoint=step, outer=optax.adam(0.1))
    return solver, (jnp.zeros(N), jnp.zeros(3)), bl.Batch(inner=rows(N), outer=rows(20))


def close(left, right):
    """Two programs instead of one may round otherwise."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14), left, right)


class Look(bl.hooks.Hook):
    """A hook that is shown the run as it rests, which is not brought to the device for it."""

    reads_info = False

    def __init__(self, function):
        self.seen, self.function = [], function

    def __call__(self, event):
        self.seen.append(self.function(event))


def kinds(tree):
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree) if leaf.ndim}


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["device", "host", "off"])
@pytest.mark.parametrize("loader", [False, True])
def test_the_same_run(replay, loader):
    solver, start, data = setting()
    look = Look(lambda event: (kinds(event.state.outer), kinds((event.run.x, event.run.y))))
    given = lambda: [data] * 11 if loader else data
    plain = bl.run(solver, *start, data=given(), steps=9, warmup=2)
    aside = bl.run(
        solver,
        *start,
        data=given(),
        steps=9,
        warmup=2,
        options=bl.RunOptions(offload="outer", every=4, snapshots=replay),
        hooks=[look],
    )
    close((aside.run, aside.trace), (plain.run, plain.trace))
    assert look.seen == [({"pinned_host"}, {"device"})] * 3
    assert kinds(aside.run) == {"device"}


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["host", "off"])
def test_whoever_has_looked_at_it_holds_it(replay):
    """A view of the host's memory forbids, on some devices, that it be given to the next step."""
    solver, start, data = setting()
    momentum = lambda state: state.outer[0].mu
    look = Look(lambda event: (momentum(event.state), np.asarray(momentum(event.state))))
    bl.run(
        solver,
        *start,
        data=data,
        steps=3,
        options=bl.RunOptions(every=1, offload="outer", snapshots=replay),
        warmup=1,
        hooks=[look],
    )
    record = lambda state, info: {"momentum": momentum(state)}
    plain = bl.run(solver, *start, data=data, steps=3, warmup=1, record=record)
    for (array, view), expected in zip(look.seen, plain.trace["momentum"], strict=True):
        assert not array.is_deleted()
        close(view, expected)


@pytest.mark.slow
def test_donated_memory_of_the_same_shape_is_not_taken_for_what_goes_to_the_host():
    """FSLA holds three more arrays like x, and a trace has columns as long as this x."""
    solver, (_, y0), data = setting()
    tile = lambda rows: jax.tree.map(lambda a: jnp.tile(a, (1024 // N + 1, *[1] * (a.ndim - 1)))[:1024], rows)
    data, x0 = bl.Batch(inner=tile(data.inner), outer=data.outer), jnp.zeros(1024)
    for each in (solver, bl.solvers.fsla(solver.problem, inner=0.1, adjoint=0.1, outer=optax.adam(0.1))):
        plain = bl.run(each, x0, y0, data=data, steps=3)
        for replay in ("device", "off"):
            aside = bl.run(
                each,
                x0,
                y0,
                data=data,
                steps=3,
                options=bl.RunOptions(offload="outer", snapshots=replay),
            )
            close(aside.run, plain.run)


@pytest.mark.slow
def test_resumed_with_and_without():
    solver, start, data = setting()
    run = lambda steps, option, **more: bl.run(
        solver,
        data=data,
        steps=steps,
        **with_options(more | dict(offload=option)),
    )
    x0, y0 = start
    whole = run(9, "outer", x0=x0, y0=y0)
    half = run(4, "outer", x0=x0, y0=y0, snapshots="host")
    for option in (None, "outer"):
        rest = run(5, option, resume=half, snapshots="host")
        close(rest.run, whole.run)
    jax.tree.map(np.testing.assert_array_equal, rest.run, whole.run)  # the same programs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "resume"),
    [("outer", "outer", "auto"), (None, "outer", "folder"), ("outer", None, "auto")],
)
def test_checkpoints_with_and_without(tmp_path, before, after, resume):
    solver, start, data = setting()
    whole = bl.run(solver, *start, data=data, steps=9)
    saving = bl.hooks.Checkpoint(tmp_path, save_every=2)
    bl.run(solver, *start, data=data, steps=5, options=bl.RunOptions(offload=before), hooks=[saving])
    if resume == "auto":
        again = lambda: bl.run(
            solver,
            *start,
            data=data,
            steps=9,
            options=bl.RunOptions(offload=after),
            checkpoint=tmp_path,
            resume="auto",
        )
        rest = [again(), again()]  # the second has nothing left to do
    else:
        rest = [
            bl.run(solver, *start, data=data, steps=4, options=bl.RunOptions(offload=after), resume=tmp_path)
        ]
    for each in rest:
        close((each.run, each.trace), (whole.run, whole.trace))
        assert kinds(each.run) == {"device"}


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["device", "host"])
def test_a_run_that_diverges_goes_back_all_the_same(replay):
    solver, start, data = setting(step=50.0)
    aside = bl.run(
        solver,
        *start,
        data=data,
        steps=60,
        options=bl.RunOptions(every=60, offload="outer", snapshots=replay),
    )
    assert aside.status.code is bl.Code.DIVERGED
    assert 0 < aside.steps < 60
    again = bl.run(solver, *start, data=data, steps=aside.steps, options=bl.RunOptions(offload="outer"))
    jax.tree.map(np.testing.assert_array_equal, aside.run, again.run)


class Own(bl.Solver):
    """A user's own, whose state is a module: moves x by its rule so many times, and once may clip it."""

    moves: int = eqx.field(static=True, default=0)
    outer: Any = as_rule(optax.adam(0.1), "outer")
    name: ClassVar[str] = "Own"

    class State(eqx.Module):
        x: Any
        y: Any
        outer: Any

    def init(self, x0, y0, batch=None):
        return self.State(x0, y0, self.outer.init(x0))

    def step(self, state, batch=None):
        f = self.problem.oracles.outer_gradients(state.x, state.y, batch)
        h = self.problem.oracles.inner_gradients(state.x, state.y, batch).x
        x, memory = self.outer.update(h, state.outer, state.x)
        if self.moves == 1:
            x = jnp.clip(x, -0.05, 0.05)
        if self.moves == 2:
            x, memory = self.outer.update(h, memory, x)
        gradient = self.problem.oracles.inner_gradient(state.x, state.y, batch)
        y = jax.tree.map(lambda a, b: a - 0.1 * b, state.y, gradient)
        return self.State(x, y, memory), bl.Info(f.value, h, gradient, {})


@pytest.mark.slow
def test_a_solver_of_ones_own():
    solver, start, data = setting()
    runs = [
        bl.run(Own(solver.problem), *start, data=data, steps=6, options=bl.RunOptions(offload=option))
        for option in (None, "outer")
    ]
    close(*((each.run, each.trace) for each in runs))


@pytest.mark.slow
def test_hooks_and_probes_compute_with_what_they_are_shown():
    solver, start, data = setting()
    go_on = lambda event: jax.jit(solver.step)(event.state, data)[0].x
    after, results = [], []

    def hook(event):
        after.append(go_on(event))
        results.append(event.so_far())

    probe = lambda state, info: {"m": jnp.sum(state.outer[0].mu * state.x)}
    runs = [
        bl.run(
            solver,
            *start,
            data=data,
            steps=4,
            options=bl.RunOptions(every=2, offload=option, probe=probe),
            hooks=[hook],
        )
        for option in (None, "outer")
    ]
    close(after[:2], after[2:])
    close(runs[0].probes, runs[1].probes)
    rest = bl.run(solver, data=data, steps=2, resume=results[2])  # what was so far, without offloading
    close(rest.run, runs[0].run)


ASKED = {
    "a plain step": (
        lambda p: bl.aid(p, inner=0.1, adjoint=0.1, outer=0.1),
        {},
        "remembers no array, but single numbers at most: leave it out",
    ),
    "no outer rule": (bl.tuning_free, {}, "remembers no array, but single numbers at most: leave it out"),
    "goes on from x": (
        lambda p: bl.solvers.meha(p, inner=0.1, outer=optax.adam(0.1), penalty=1.0, proximal_step=1.0),
        {},
        "uses the new x",
    ),
    "record": (
        lambda p: bl.soba(p, inner=0.1, adjoint=0.1, outer=optax.adam(0.1)),
        {"record": lambda state, info: {"x": state.x[0]}},
        "or the record, uses the new x or the memory of its rule within it",
    ),
    "record of the memory": (
        lambda p: bl.soba(p, inner=0.1, adjoint=0.1, outer=optax.adam(0.1)),
        {"record": lambda state, info: {"m": optax.tree.norm(state.outer)}},
        "or the record, uses the new x or the memory of its rule within it",
    ),
    "record of a part of it": (
        lambda p: bl.soba(p, inner=0.1, adjoint=0.1, outer=optax.adam(0.1)),
        {"record": lambda state, info: {"m": state.outer[0].mu[0]}},
        "or record by a hook .AttributeError",
    ),
    "clips x itself": (lambda p: Own(p, 1), {}, "Own, or the record, uses the new x"),
    "moves x twice": (lambda p: Own(p, 2), {}, "or moves x twice: leave it out"),
    "line search": (
        lambda p: bl.soba(p, inner=0.1, adjoint=0.1, outer=optax.lbfgs()),
        {},
        "asks for their value",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ASKED)
def test_what_cannot_be_is_said_before_any_work(case):
    solver, start, data = setting()
    make, more, message = ASKED[case]
    with pytest.raises(ValueError, match=message):
        bl.run(
            make(solver.problem),
            *start,
            data=data,
            steps=2,
            **with_options(more | dict(offload="outer")),
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["itd", "stocbio", "f2sa", "saba"])
def test_other_methods_and_a_constrained_x(name):
    problem, start, data = setting()[0].problem, *setting()[1:]
    outer = bl.projected(optax.adam(0.1), lambda x: jnp.clip(x, -0.1, 0.1))
    solver = {
        "itd": lambda: bl.itd(problem, inner=0.1, outer=outer),
        "stocbio": lambda: bl.stocbio(problem, inner=0.1, adjoint=0.1, outer=outer, products=3),
        "f2sa": lambda: bl.f2sa(problem, inner=0.1, outer=outer, penalty=2.0),
        "saba": lambda: bl.saba(problem, inner=0.1, adjoint=0.1, outer=outer),
    }[name]()
    runs = [
        bl.run(solver, *start, data=data, steps=6, options=bl.RunOptions(offload=option))
        for option in (None, "outer")
    ]
    close(*((each.run, each.trace) for each in runs))
    assert "stationarity" in runs[1].trace


def test_a_backend_without_such_memory_is_said(monkeypatch):
    solver, start, data = setting()
    with pytest.raises(ValueError, match='offload must be "outer" or None, not'):
        bl.run(solver, *start, data=data, steps=2, options=bl.RunOptions(offload="y"))
    monkeypatch.setattr(offload, "KIND", "far_away")
    with pytest.raises(ValueError, match=r"of the kind far_away, but .* has .*pinned_host"):
        bl.run(solver, *start, data=data, steps=2, options=bl.RunOptions(offload="outer"))


def test_an_error_of_the_objective_is_its_own():
    solver, start, data = setting()

    def outer(x, y, data):
        raise ZeroDivisionError("of the user's own")

    broken = bl.soba(
        bl.Problem(inner=solver.problem.inner, outer=outer), inner=0.1, adjoint=0.1, outer=optax.adam(0.1)
    )
    for option in (None, "outer"):
        with pytest.raises(ZeroDivisionError, match="of the user's own"):
            bl.run(broken, *start, data=data, steps=2, options=bl.RunOptions(offload=option))
