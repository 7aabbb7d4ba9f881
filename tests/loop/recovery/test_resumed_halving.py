"""A run with on_divergence="halve" that is cut anywhere and resumed is the unbroken run, bit for bit."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.loop.checkpoints.contents import packed, unpacked
from run_options import with_options

X0, Y0 = jnp.full(2, 6.0), jnp.full(2, 6.0)
SMALL = X0.astype(jnp.float32), Y0.astype(jnp.float32)
CUTS = [1, 2, 3, 5, 7, 20, 50]


def g(x, y):
    return 0.5 * jnp.sum((y - x) ** 2)


STEEP = bl.Problem(inner=g, outer=lambda x, y: jnp.sum((y - 2.0) ** 4))
FLAT = bl.Problem(
    inner=g, outer=lambda x, y, *, rows: jnp.sum((y - 2.0) ** 2) + 0.0 * rows[0].astype(y.dtype)
)
WILD = bl.aid(STEEP, inner=0.5, adjoint=0.5, outer=0.35)  # the outer step is too large at the start
HALVE = dict(on_divergence="halve", every=5)


def jump(at: int):
    """An outer step of 0.1 that becomes 60 later: the run diverges then, after a few blown-up steps."""
    rule = optax.sgd(lambda count: jnp.where(count < at, jnp.float32(0.1), jnp.float32(900.0)))
    return bl.aid(FLAT, inner=0.5, adjoint=0.5, outer=rule)


class Numbered:
    """A loader that says where it stands."""

    def __init__(self, steps: int):
        self.at, self.steps = 0, steps

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.steps:
            raise StopIteration
        self.at += 1
        return bl.Batch(rows=bl.Levels(None, jnp.array([self.at - 1])))

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


def how(result):
    """The status, without what a run that resumes from a folder says about its loader."""
    note = " Cannot verify that the batches of the loader after the first are unchanged."
    return replace(result.status, message=result.status.message.removesuffix(note))


def same(one: bl.Result, other: bl.Result) -> None:
    arrays = lambda result: (result.run, result.trace)
    jax.tree.map(np.testing.assert_array_equal, arrays(one), arrays(other))
    assert (how(one), one.halvings, one.steps) == (how(other), other.halvings, other.steps)


@pytest.fixture(scope="module")
def unbroken():
    return bl.run(WILD, X0, Y0, steps=120, **with_options(HALVE))


def test_the_unbroken_run_is_the_one_with_the_smaller_step(unbroken):
    assert unbroken.status.code is bl.Code.COMPLETED
    assert [step for step, *_ in unbroken.halvings] == [0] * len(unbroken.halvings) != []
    small = bl.run(
        bl.aid(STEEP, inner=0.5, adjoint=0.5, outer=0.35 * unbroken.halvings[-1][2]), X0, Y0, steps=120
    )
    np.testing.assert_array_equal(unbroken.x, small.x)
    np.testing.assert_array_equal(unbroken.trace["outer_value"], small.trace["outer_value"])


@pytest.mark.parametrize("cut", CUTS)
def test_resumed_from_memory(unbroken, cut):
    half = bl.run(WILD, X0, Y0, steps=cut, **with_options(HALVE))
    same(bl.run(WILD, steps=120 - cut, resume=half, **with_options(HALVE)), unbroken)


@pytest.mark.parametrize("cut", [2, 3, 50])
def test_resumed_from_disk(unbroken, cut, tmp_path):
    bl.run(WILD, X0, Y0, steps=cut, checkpoint=tmp_path / "auto", **with_options(HALVE))
    on = bl.run(
        WILD,
        X0,
        Y0,
        steps=120,
        checkpoint=tmp_path / "auto",
        resume="auto",
        **with_options(HALVE),
    )
    same(on, unbroken)
    bl.run(WILD, X0, Y0, steps=cut, checkpoint=tmp_path / "path", **with_options(HALVE))
    same(bl.run(WILD, steps=120 - cut, resume=tmp_path / "path", **with_options(HALVE)), unbroken)


def test_a_checkpoint_of_a_run_under_way_has_the_place_to_go_back_to(unbroken, tmp_path):
    """As after a kill: what the newest checkpoint holds was saved while the outer value was blowing up."""
    saved = []
    hook = lambda event: saved.append(event.so_far())
    whole = bl.run(WILD, X0, Y0, steps=120, hooks=[hook], **with_options(HALVE))
    same(whole, unbroken)

    class Marked(bl.hooks.Hook):
        stride = 1

        def __call__(self, event):
            saved.append(event.so_far())

    bl.run(WILD, X0, Y0, steps=4, hooks=[Marked()], **with_options(HALVE))
    blown_up = [each for each in saved if each.steps == 2][-1]
    same(bl.run(WILD, steps=118, resume=blown_up, **with_options(HALVE)), unbroken)


@cache
def jumping(thin):
    options = dict(steps=70, thin=thin, on_divergence="halve", every=10)
    return options, bl.run(jump(30), *SMALL, data=Numbered(70), **with_options(options))


@pytest.mark.slow
@pytest.mark.parametrize(("cut", "thin"), [(3, 7), (31, None), (32, 7), (40, None)])
def test_from_a_loader_with_a_thinned_trace_and_an_optax_rule(cut, thin, tmp_path):
    """It diverges after step 30, in the middle of the run."""
    options, whole = jumping(thin)
    assert whole.halvings
    assert whole.halvings[0][0] >= 20
    half = bl.run(
        jump(30),
        *SMALL,
        data=(loader := Numbered(70)),
        **with_options(options | {"steps": cut}),
    )
    rest = options | {"steps": 70 - cut}
    same(bl.run(jump(30), data=loader, resume=half, **with_options(rest)), whole)
    same(
        bl.run(jump(30), data=Numbered(70), resume=half, **with_options(rest)), whole
    )  # moved to where the other one was
    saved = dict(checkpoint=tmp_path, resume="auto")
    bl.run(
        jump(30),
        *SMALL,
        data=Numbered(70),
        **with_options({**(options | {"steps": cut}), **saved}),
    )
    same(
        bl.run(
            jump(30),
            *SMALL,
            data=Numbered(70),
            **with_options({**options, **saved}),
        ),
        whole,
    )


def test_ten_halvings_are_for_one_run_however_often_it_is_cut():
    hopeless = bl.aid(STEEP, inner=1e6, adjoint=0.1, outer=0.1)
    ask = dict(on_divergence="halve", every=2)
    whole = bl.run(hopeless, X0, Y0, steps=60, **with_options(ask))
    assert (whole.status.code, len(whole.halvings)) == (bl.Code.DIVERGED, 10)
    part = bl.run(hopeless, X0, Y0, steps=1, **with_options(ask))
    on = bl.run(hopeless, steps=59, resume=part, **with_options(ask))
    assert (on.status.code, on.halvings) == (bl.Code.DIVERGED, whole.halvings)
    more = bl.run(
        hopeless, steps=60, resume=whole, **with_options(ask)
    )  # a run that has ended so may have ten more
    assert len(more.halvings) > 10


@pytest.mark.slow
def test_a_result_without_the_place_is_resumed_from_where_it_is():
    """Of a run that would have stopped, or of an older checkpoint."""
    good = bl.run(
        jump(30),
        *SMALL,
        steps=20,
        data=Numbered(70),
        options=bl.RunOptions(on_divergence="halve", every=8),
    )
    contents, arrays, _ = packed(good, [], {})
    contents["tree"]["list"].pop()
    older, _ = unpacked(contents, arrays)
    assert older.recovery is None
    np.testing.assert_array_equal(older.x, good.x)
    assert good.recovery is not None
    assert good.recovery.place.step == 16
    for earlier in (
        replace(good, recovery=None),
        bl.run(jump(30), *SMALL, steps=20, data=Numbered(70), options=bl.RunOptions(every=8)),
    ):
        on = bl.run(
            jump(30),
            steps=50,
            data=Numbered(70),
            resume=earlier,
            options=bl.RunOptions(on_divergence="halve", every=8),
        )
        assert on.status.code is bl.Code.COMPLETED
        assert min(step for step, *_ in on.halvings) >= 20


RULES = {
    "number": lambda: 0.1,
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(0.05),
    "injected": lambda: optax.inject_hyperparams(optax.adam)(0.05),
    "projected": lambda: bl.projected(optax.adam(0.05), optax.projections.projection_non_negative),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_without_a_halving_not_a_bit_changes(name):
    f = lambda x, y: jnp.sum(jnp.tanh(y - 2.0) ** 2) + 0.1 * jnp.sum(jnp.sin(3 * x) ** 2)
    solver = bl.aid(bl.Problem(inner=g, outer=f), inner=0.3, adjoint=0.3, outer=RULES[name]())
    start = jnp.linspace(0.1, 1.3, 37, dtype=jnp.float32), jnp.zeros(37, jnp.float32)
    seen = []
    see = lambda event: seen.append(event.solver)
    with jax.numpy_dtype_promotion("standard"):  # for optax's Adam
        plain = bl.run(solver, *start, steps=60, options=bl.RunOptions(every=7))
        halve = bl.run(
            solver, *start, steps=60, options=bl.RunOptions(every=7, on_divergence="halve"), hooks=[see]
        )
    same(halve, plain)
    assert jax.tree.structure(seen[-1]) == jax.tree.structure(solver)


def test_an_event_has_the_step_sizes_in_force():
    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum((y - 2) ** 2))
    sizes = []
    see = lambda event: sizes.append((float(event.solver.inner.step_size), event.solver.outer.step_size))
    result = bl.run(
        bl.aid(problem, inner=3.0, adjoint=0.4, outer=0.1),
        X0,
        Y0,
        steps=1200,
        options=bl.RunOptions(on_divergence="halve"),
        hooks=[see],
    )
    assert sizes[-1] == (3.0 * result.halvings[-1][1], 0.1)
    assert result.halvings[-1][1] == 0.25


@pytest.mark.slow
def test_early_stopping_forgets_the_way_that_the_run_has_left():
    """By this metric the run is best while it blows up."""
    outer = lambda x, y: (jnp.sum((y - 2.0) ** 2), {"size": jnp.max(jnp.abs(y))})
    rule = optax.sgd(lambda count: jnp.where(count < 30, jnp.float32(0.1), jnp.float32(900.0)))
    solver = bl.aid(bl.Problem(inner=g, outer=outer), inner=0.5, adjoint=0.5, outer=rule)
    hook = bl.hooks.EarlyStopping("outer/size", mode="max", patience=200)
    result = bl.run(
        solver, *SMALL, steps=60, options=bl.RunOptions(on_divergence="halve", every=2), hooks=[hook]
    )
    assert result.status.code is bl.Code.COMPLETED
    assert result.halvings
    assert -hook.best == result.trace["outer/size"][hook.best_step - 1]
