"""Several inner steps are training: each has a batch, a key and a model state of its own, as a loop by hand."""

import jax
import jax.numpy as jnp
import optax
import pytest

import bilevel as bl
from run_options import with_options
from training_by_hand import (
    ALPHA,
    BETA,
    DATA,
    PROBLEM,
    SEED,
    STATE0,
    STREAMS,
    X0,
    Y0,
    Hand,
    N,
    as_loader,
    by_hand,
    close,
    drawn,
    given,
    one_step,
)

UNROLLED = {
    "itd": lambda inner: bl.itd(PROBLEM, inner=inner, outer=BETA, inner_steps=N),
    "itd, few points kept": lambda inner: bl.itd(
        PROBLEM, inner=inner, outer=BETA, inner_steps=N, checkpoint_every=2
    ),
    "forward_itd": lambda inner: bl.solvers.forward_itd(PROBLEM, inner=inner, outer=BETA, inner_steps=N),
    "rtho": lambda inner: bl.solvers.rtho(PROBLEM, inner=inner, outer=BETA, inner_steps=N),
}


SLOW = [
    *((method, "epochs") for method in UNROLLED),
    *(("itd", data) for data in STREAMS if data != "epochs"),
][1:]
CASES = [("itd", "epochs"), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "data"), CASES)
def test_the_hypergradient_is_that_of_the_loop_by_hand(method, data):
    value, gradient, y, after = by_hand(data)
    h, end = one_step(UNROLLED[method](ALPHA), given(data))
    close(h, gradient)
    close(end.trace["outer_value"][0], value)
    close(end.y, y)
    close(end.model_state["mean"], after["mean"])
    assert end.model_state["n"] == N


@pytest.mark.slow
@pytest.mark.parametrize("method", UNROLLED)
def test_it_goes_through_the_memory_of_the_rule_too(method):
    _, gradient, y, _ = by_hand("epochs", heavy=True)
    h, end = one_step(UNROLLED[method](optax.sgd(ALPHA, momentum=0.5)), given("epochs"))
    close(h, gradient)
    close(end.y, y)


@pytest.mark.slow
def test_loaders_give_their_batches_in_order():
    value, gradient, y, after = by_hand("epochs")
    keep = lambda state, info: {"h": info.hypergradient}
    how = dict(steps=1, seed=SEED, model_state=STATE0, record=keep)
    result = bl.run(UNROLLED["itd"](ALPHA), X0, Y0, data=as_loader(given("epochs"), N), **with_options(how))
    close(result.trace["h"][0], gradient)
    close(result.trace["outer_value"][0], value)
    close(result.y, y)
    close(result.model_state["mean"], after["mean"])


@pytest.mark.slow
def test_truncation_holds_y_and_the_state_before_it_fixed():
    hand, T = Hand(drawn("epochs", N), 0), 2

    def outer(x):
        y, s = Y0, STATE0
        for t in range(N):
            if t == N - T:
                y, s = jax.lax.stop_gradient((y, s))
            seen = s
            d, s = jax.grad(lambda y, s=seen, t=t: hand.g(x, y, t, s), has_aux=True)(y)
            y = y - ALPHA * d
        return hand.f(x, y, N - 1, seen)

    expected = jax.jit(jax.grad(outer))(X0)
    for T_is in (dict(), dict(checkpoint_every=2)):
        h, _ = one_step(
            bl.itd(PROBLEM, inner=ALPHA, outer=BETA, inner_steps=N, truncate=T, **T_is), given("epochs")
        )
        close(h, expected)
    h, _ = one_step(bl.itd(PROBLEM, inner=ALPHA, outer=BETA, inner_steps=N, truncate=1), given("epochs"))
    y, _, s, _ = hand.train(X0, Y0, STATE0, steps=N - 1)
    last = lambda x: hand.f(x, y - ALPHA * jax.grad(lambda y: hand.g(x, y, N - 1, s)[0])(y), N - 1, s)
    close(h, jax.jit(jax.grad(last))(X0))


@pytest.mark.slow
def test_rtho_differentiates_the_whole_run():
    """Z is the derivative of the run in one shift of every x_k."""
    steps, xs = 2, [X0]
    solver = bl.solvers.rtho(PROBLEM, inner=ALPHA, outer=BETA, inner_steps=N)
    for k in range(steps):

        def outer(shift, k=k):
            y, s = Y0, STATE0
            for i in range(k + 1):
                hand = Hand(drawn("epochs", N, skip=i * N), i)
                y, seen, s, _ = hand.train(xs[i] + shift, y, s)
            return hand.f(xs[k] + shift, y, N - 1, seen)

        gradient = jax.jit(jax.grad(outer))(jnp.zeros(2))
        h, _ = one_step(solver, given("epochs"), k + 1)
        close(h, gradient)
        xs.append(xs[k] - BETA * gradient)


@pytest.mark.slow
def test_bda_follows_both_gradients_of_every_draw():
    hand = Hand(drawn("epochs", N), 0)

    def outer(x):
        y, s = Y0, STATE0
        for t in range(N):
            seen, weight = s, 0.5 / (t + 1)
            of_g, s = jax.grad(lambda y, s=seen, t=t: hand.g(x, y, t, s), has_aux=True)(y)
            of_f = jax.grad(lambda y, s=seen, t=t: hand.f(x, y, t, s))(y)
            y = y - ALPHA * ((1 - weight) * of_g + weight * of_f)
        return hand.f(x, y, N - 1, seen)

    h, result = one_step(bl.solvers.bda(PROBLEM, inner=ALPHA, outer=BETA, inner_steps=N), given("epochs"))
    close(h, jax.jit(jax.grad(outer))(X0))
    assert result.model_state["n"] == N


@pytest.mark.slow
def test_iaptt_judges_all_iterates_on_the_last_draw():
    hand = Hand(drawn("epochs", N), 0)

    def outer(x):
        y, s, values = Y0, STATE0, []
        for t in range(N):
            seen = s
            d, s = jax.grad(lambda y, s=seen, t=t: hand.g(x, y, t, s), has_aux=True)(y)
            y = y - ALPHA * d
            values.append(hand.f(x, y, N - 1, seen))
        return jnp.max(jnp.stack(values))

    h, result = one_step(bl.solvers.iaptt(PROBLEM, inner=ALPHA, outer=BETA, inner_steps=N), given("epochs"))
    close(h, jax.jit(jax.grad(outer))(X0))
    close(result.trace["outer_value"][0], outer(X0))
    assert result.model_state["n"] == N


@pytest.mark.slow
@pytest.mark.parametrize("make", [bl.itd, bl.solvers.forward_itd, bl.solvers.rtho])
def test_shared_is_one_batch_and_one_key_but_not_one_state(make):
    _, gradient, y, _ = by_hand("epochs", shared=True)
    solver = make(PROBLEM, inner=ALPHA, outer=BETA, inner_steps=N, batches="shared")
    h, end = one_step(solver, given("epochs"))
    close(h, gradient)
    close(end.y, y)
    assert solver.draws == 1
    assert end.model_state["n"] == N


@pytest.mark.slow
def test_the_counter_moves_with_every_inner_step():
    _, end = one_step(bl.itd(PROBLEM, inner=1e-3, outer=BETA, inner_steps=200), given("epochs"), steps=5)
    assert end.model_state["n"] == 1000


@pytest.mark.slow
def test_a_step_by_hand_takes_one_batch_for_all_draws_and_a_key_for_each():
    _, gradient, _, after = by_hand("whole")
    batch = bl.Batch(inner=DATA.inner, outer=DATA.outer, key=Hand([], 0).key, state=STATE0)
    solver = UNROLLED["itd"](ALPHA)
    _, info = jax.jit(solver.step)(solver.init(X0, Y0, batch), batch)
    close(info.hypergradient, gradient)
    close(info.model.after["mean"], after["mean"])
