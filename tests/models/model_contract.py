"""What every framework's recipe must do: dropout, batch norm, weights by row, metrics, resuming, sweeping."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.loop.state import OBJECTIVES

ROWS, SIZE, WIDTH = 160, 40, 16
ALPHA, ETA, BETA = 0.3, 0.1, 3.0
MOMENTUM = 0.9


def objectives_key(seed):
    """Apart from the key that a data stream makes of the same seed."""
    return jax.random.fold_in(jax.random.key(seed), OBJECTIVES)


class Model(NamedTuple):
    """A network of a dense layer, batch norm (momentum 0.9), tanh, dropout and a dense layer, in some framework."""

    y0: Any
    state0: Any
    forward: Callable  # (y, state, inputs, key) -> logits, state: as in training
    predict: Callable  # (y, state, inputs) -> logits: as in use
    dropped: Callable  # key -> what its dropout layer makes of ones(WIDTH)
    first_layer: Callable  # y -> (kernel of shape (inputs, WIDTH), bias)
    statistics: Callable  # state -> (running mean, running variance)


class Task(NamedTuple):
    problem: bl.Problem
    solver: Any
    data: Any
    wrong: np.ndarray
    seen: list  # the masks of every evaluation of the inner objective


def losses_of(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def code(ones):
    """A dropout mask as one number."""
    return jnp.sum(jnp.where(ones > 0, 2 ** jnp.arange(WIDTH), 0))


def make_task(model: Model) -> Task:
    rng = np.random.default_rng(0)

    def examples(count):
        labels = rng.integers(0, 2, count)
        inputs = rng.normal(size=(count, 8))
        inputs[:, :2] += np.where(labels == 1, 1.5, -1.5)[:, None]
        return inputs.astype(np.float32), labels.astype(np.int32)

    (inputs, labels), valid = examples(ROWS), examples(80)
    wrong = rng.random(ROWS) < 0.3
    seen = []

    def inner(x, y, batch, *, key, rows, state):
        inputs, labels = batch
        logits, state = model.forward(y, state, inputs, key)
        loss = jnp.mean(jax.nn.sigmoid(x[rows]) * losses_of(logits, labels)) + 0.01 * optax.tree.norm(
            y, squared=True
        )
        mask = code(model.dropped(key))
        jax.debug.callback(lambda mask: seen.append(int(mask)), mask)
        return loss, {"mask": mask}, state

    def outer(x, y, batch, *, state):
        inputs, labels = batch
        logits = model.predict(y, state, inputs)
        return jnp.mean(losses_of(logits, labels)), {
            "accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == labels)
        }

    data = bl.epochs(
        bl.Batch(inner=(inputs, np.where(wrong, 1 - labels, labels)), outer=valid),
        bl.Levels(inner=SIZE, outer=None),
    )
    problem = bl.Problem(inner=inner, outer=outer)
    return Task(problem, bl.soba(problem, inner=ALPHA, adjoint=ETA, outer=BETA), data, wrong, seen)


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def _step_by_hand(model):
    """A step of SOBA, with Hessian products by reverse mode over reverse mode: not the library's way."""

    def move(x, y, v, state, batch, key):
        fresh = lambda: jax.tree.map(lambda leaf: leaf, state)

        def g(x, y):
            inputs, labels = batch.inner
            logits, _ = model.forward(y, fresh(), inputs, key)
            decay = 0.01 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(y))
            return jnp.mean(jax.nn.sigmoid(x[batch.rows.inner]) * losses_of(logits, labels)) + decay

        def f(y):
            inputs, labels = batch.outer
            return jnp.mean(losses_of(model.predict(y, fresh(), inputs), labels))

        slope = lambda x, y: optax.tree.vdot(jax.grad(g, argnums=1)(x, y), v)
        cross, hessian = jax.grad(slope, argnums=(0, 1))(x, y)
        new_y = jax.tree.map(lambda y, d: y - ALPHA * d, y, jax.grad(g, argnums=1)(x, y))
        new_v = jax.tree.map(lambda v, h, b: v - ETA * (h - b), v, hessian, jax.grad(f)(y))
        return x + BETA * cross, new_y, new_v, model.forward(y, fresh(), batch.inner[0], key)[1]

    return move


class Contract:
    """To be inherited by a class per framework, in a module with a fixture `model`; the others are in conftest.py."""

    @pytest.mark.slow
    def test_it_learns_and_trusts_wrong_labels_less(self, run, task):
        best = bl.hooks.Best("outer/accuracy", mode="max")
        result = run(steps=250, every=10, hooks=[best])
        trust = np.asarray(jax.nn.sigmoid(result.x))
        assert result.status.code is bl.Code.COMPLETED
        assert result.trace["outer_value"][-1] < 0.5 * result.trace["outer_value"][0]
        assert trust[task.wrong].mean() < 0.3 < 0.6 < trust[~task.wrong].mean()
        assert best.value == result.trace["outer/accuracy"][9::10].max() > 0.9
        assert best.step == 10 * (1 + np.argmax(result.trace["outer/accuracy"][9::10]))
        assert jax.tree.structure(best.model_state) == jax.tree.structure(result.model_state)

    @pytest.mark.slow
    def test_early_stopping_by_the_metric(self, run):
        result = run(
            steps=250, every=7, hooks=[bl.hooks.EarlyStopping("outer/accuracy", mode="max", patience=20)]
        )
        accuracy = result.trace["outer/accuracy"]
        assert result.status.code is bl.Code.STOPPED
        assert result.steps == len(accuracy) == np.argmax(accuracy) + 1 + 20

    @pytest.mark.slow
    def test_every_variable_and_the_statistics_are_those_of_a_loop_written_by_hand(self, model, task, run):
        steps, seed = 6, 3
        ys = []
        result = run(steps=steps, seed=seed, every=1, hooks=[lambda event: ys.append(event.state.y)])
        x, y, state = jnp.zeros(ROWS), model.y0, model.state0
        v, cursor = jax.tree.map(jnp.zeros_like, y), task.data.start(0)
        mean, variance = (np.asarray(statistic) for statistic in model.statistics(state))
        move = jax.jit(_step_by_hand(model))
        for step in range(steps):
            cursor, batch = task.data.next(cursor)
            key = jax.random.fold_in(jax.random.fold_in(objectives_key(seed), step), 0)
            kernel, bias = (np.asarray(part) for part in model.first_layer(y))
            normalized = np.asarray(batch.inner[0]) @ kernel + bias
            mean = MOMENTUM * mean + (1 - MOMENTUM) * normalized.mean(axis=0)
            variance = MOMENTUM * variance + (1 - MOMENTUM) * normalized.var(axis=0)
            x, y, v, state = move(x, y, v, state, batch, key)
            for ours, theirs in zip(jax.tree.leaves(ys[step]), jax.tree.leaves(y), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        assert not np.allclose(mean, model.statistics(model.state0)[0])
        np.testing.assert_allclose(result.x, x, rtol=1e-3, atol=1e-6)
        close = lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        jax.tree.map(close, result.model_state, state)
        close(model.statistics(result.model_state)[0], mean)
        close(model.statistics(result.model_state)[1], variance)

    @pytest.mark.slow
    def test_a_step_has_one_dropout_mask_and_the_next_step_another(self, model, task):
        steps = 8
        solver = bl.aid(task.problem, inner=ALPHA, adjoint=ETA, outer=BETA, inner_steps=2, batches="shared")
        task.seen.clear()
        result = bl.run(
            solver,
            jnp.zeros(ROWS),
            model.y0,
            model_state=model.state0,
            data=task.data,
            steps=steps,
            options=bl.RunOptions(every=steps),
        )
        jax.effects_barrier()
        masks = result.trace["inner/mask"].tolist()
        assert len(set(masks)) == steps
        assert set(task.seen) == set(masks)  # no evaluation, of whatever derivative, saw another
        assert len(task.seen) > 2 * steps
        assert 0 not in masks

    @pytest.mark.slow
    def test_a_resumed_run_is_an_unbroken_one(self, run):
        whole, half = run(steps=20, every=20, seed=7), run(steps=9, every=4, seed=7)
        resumed = run(steps=11, resume=half)
        for part in ("x", "y", "model_state", "trace", "run"):
            same(getattr(resumed, part), getattr(whole, part))

    @pytest.mark.slow
    def test_a_sweep_over_seeds_gives_what_single_runs_give(self, model, task, run):
        found = bl.sweep(
            task.solver,
            jnp.zeros(ROWS),
            model.y0,
            model_state=model.state0,
            data=task.data,
            steps=10,
            seeds=[0, 5],
            metric="outer/accuracy",
            mode="max",
        )
        for lane, seed in enumerate((0, 5)):
            alone = run(steps=10, seed=seed)
            close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
            jax.tree.map(close, (found[lane].x, found[lane].y), (alone.x, alone.y))
            jax.tree.map(close, found[lane].model_state, alone.model_state)
            np.testing.assert_array_equal(found.trace["inner/mask"][lane], alone.trace["inner/mask"])
        means = [np.asarray(model.statistics(found[lane].model_state)[0]) for lane in (0, 1)]
        assert not np.array_equal(*means)  # other masks, other parameters, other statistics

    @pytest.mark.slow
    def test_a_warm_up_moves_the_statistics_on_batches_of_its_own(self, model, task, warmed):
        begun, once, twice, _ = warmed
        cursor, mean = task.data.start(0), np.asarray(model.statistics(model.state0)[0])
        for y, after in ((begun.y, once), (once.y, twice)):
            cursor, batch = task.data.next(cursor)
            kernel, bias = (np.asarray(part) for part in model.first_layer(y))
            mean = MOMENTUM * mean + (1 - MOMENTUM) * (np.asarray(batch.inner[0]) @ kernel + bias).mean(
                axis=0
            )
            np.testing.assert_allclose(model.statistics(after.model)[0], mean, rtol=1e-4, atol=1e-6)
        same(twice.cursor, cursor)

    @pytest.mark.slow
    def test_warm_up_within_a_run(self, task, run, warmed):
        """The run goes on in data and statistics where the warm-up ended."""
        after, _ = jax.jit(lambda run, data: bl.scan(task.solver, run, data, steps=4))(warmed[3], task.data)
        result = run(steps=4, warmup=3)
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        jax.tree.map(close, (result.x, result.y, result.model_state), (after.x, after.y, after.model))
