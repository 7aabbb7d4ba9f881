"""A batch, a key and a state for every inner step, of methods that do not differentiate through the steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from training_by_hand import (
    ALPHA,
    BETA,
    LAMBDA,
    PROBLEM,
    STATE0,
    X0,
    Y0,
    Hand,
    N,
    close,
    drawn,
    f,
    g,
    given,
    one_step,
    rng,
)


@pytest.mark.slow
def test_pzobo_runs_its_loops_on_the_same_draws():
    hand, mu = Hand(drawn("epochs", N), 0), 0.1
    y_of = lambda x: hand.train(x, Y0, STATE0)[:2]
    y, seen = y_of(X0)
    f_x, f_y = jax.grad(lambda x, y: hand.f(x, y, N - 1, seen), (0, 1))(X0, y)
    (u,) = np.asarray(
        jax.random.normal(
            jax.random.split(jax.random.fold_in(jax.random.fold_in(hand.key, 0), 2), 1)[0], (1, 2)
        )
    )
    h, result = one_step(
        bl.solvers.pzobo(PROBLEM, inner=ALPHA, outer=BETA, displacement=mu, inner_steps=N), given("epochs")
    )
    close(h, f_x + u * ((y_of(X0 + mu * u)[0] - y) / mu @ f_y))
    assert result.model_state["n"] == N


@pytest.mark.slow
def test_aid_draws_for_every_line():
    """N draws for y, one for v, one for x; with a Neumann series by hand."""
    eta, hand = 0.05, Hand(drawn("epochs", N + 2), 0)
    y, seen, after, _ = hand.trained(X0)
    gradient = lambda t: lambda x, y: jax.grad(lambda y: hand.g(x, y, t, seen)[0])(y)
    b = jax.grad(lambda y: hand.f(X0, y, N, seen))(y)
    v = eta * b  # one step from v = 0
    f_x = jax.grad(lambda x: hand.f(x, y, N + 1, seen))(X0)
    cross = jax.grad(lambda x: gradient(N + 1)(x, y) @ v)(X0)
    h, result = one_step(
        bl.aid(PROBLEM, inner=ALPHA, adjoint=eta, outer=BETA, inner_steps=N), given("epochs")
    )
    close(h, f_x - cross)
    close(result.y, y)
    close(result.model_state["mean"], after["mean"])
    assert result.model_state["n"] == N


def penalized(hand, x, y, z, t, seen, penalty=LAMBDA):
    of = lambda objective, y: jax.grad(lambda x: objective(x, y))(x)
    g_of, f_of = lambda x, y: hand.g(x, y, t, seen)[0], lambda x, y: hand.f(x, y, t, seen)
    return of(f_of, y) + penalty * (of(g_of, y) - of(g_of, z))


def two_copies(hand, state, pairs):
    """y and z of the penalty methods; the state goes along with z."""
    y = z = Y0
    for for_z, for_y in pairs:
        seen = state
        d, after = jax.grad(lambda z, s=seen, t=for_z: hand.g(X0, z, t, s), has_aux=True)(z)
        both = lambda y, s=seen, t=for_y: hand.g(X0, y, t, s)[0] + hand.f(X0, y, t, s) / LAMBDA
        y, z, state = y - ALPHA * jax.grad(both)(y), z - ALPHA * d, after
    return y, z, seen, state


PENALTY = {
    "f2ba": lambda: bl.solvers.f2ba(PROBLEM, inner=ALPHA, outer=BETA, penalty=LAMBDA, inner_steps=N),
    "acc_f2ba": lambda: bl.solvers.acc_f2ba(
        PROBLEM, inner=ALPHA, outer=BETA, penalty=LAMBDA, radius=1.0, inner_steps=N
    ),
    "f2sa_p": lambda: bl.solvers.f2sa_p(
        PROBLEM, inner=ALPHA, outer=BETA, penalty=LAMBDA, order=1, inner_steps=N
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", PENALTY)
def test_penalty_methods_draw_for_every_step(method):
    hand = Hand(drawn("epochs", N), 0)
    if method == "f2sa_p":  # whose state goes along with the first copy, y
        y, z, s = Y0, Y0, STATE0
        for t in range(N):
            seen = s
            mixed = lambda y, s=seen, t=t: (
                (out := hand.g(X0, y, t, s))[0] + hand.f(X0, y, t, s) / LAMBDA,
                out[1],
            )
            d, s = jax.grad(mixed, has_aux=True)(y)
            z = z - ALPHA * jax.grad(lambda z, s=seen, t=t: hand.g(X0, z, t, s)[0])(z)
            y = y - ALPHA * d
    else:
        y, z, seen, s = two_copies(hand, STATE0, [(t, t) for t in range(N)])
    h, result = one_step(PENALTY[method](), given("epochs"))
    close(h, penalized(hand, X0, y, z, N - 1, seen), rtol=1e-8)
    close(result.y, y)
    close(result.model_state["mean"], s["mean"])
    assert result.model_state["n"] == N


@pytest.mark.slow
def test_f2sa_carries_the_state_through_its_draws():
    hand = Hand(drawn("epochs", 2 * N + 2), 0)
    y, z, seen, s = two_copies(hand, STATE0, [(2 * t, 2 * t + 1) for t in range(N)])
    of_g = lambda y, t: jax.grad(lambda x: hand.g(x, y, t, seen)[0])(X0)
    f_x = jax.grad(lambda x: hand.f(x, y, 2 * N, seen))(X0)
    h, result = one_step(
        bl.f2sa(PROBLEM, inner=ALPHA, outer=BETA, penalty=LAMBDA, inner_steps=N), given("epochs")
    )
    close(h, f_x + LAMBDA * (of_g(y, 2 * N) - of_g(z, 2 * N + 1)), rtol=1e-8)
    close(result.model_state["mean"], s["mean"])
    assert result.model_state["n"] == N


@pytest.mark.slow
def test_stocbio_carries_the_state_through_its_draws():
    Q, eta = 2, 0.05
    hand = Hand(drawn("epochs", N + Q + 1), 0)
    y, seen, after, _ = hand.trained(X0)
    r = b = jax.grad(lambda y: hand.f(X0, y, N + Q, seen))(y)
    for i in range(Q):
        H = jax.hessian(lambda y, t=N + i: hand.g(X0, y, t, seen)[0])(y)
        r = r - eta * H @ r
        b = b + r
    f_x = jax.grad(lambda x: hand.f(x, y, N + Q, seen))(X0)
    slope = lambda x: jax.grad(lambda y: hand.g(x, y, N + Q, seen)[0])(y) @ (eta * b)
    solver = bl.stocbio(PROBLEM, inner=ALPHA, adjoint=eta, outer=BETA, inner_steps=N, products=Q)
    h, result = one_step(solver, given("epochs"))
    close(h, f_x - jax.grad(slope)(X0))
    close(result.model_state["mean"], after["mean"])
    assert result.model_state["n"] == N


@pytest.mark.slow
def test_v_pbgd_and_bome_train_their_z():
    hand = Hand(drawn("epochs", N), 0)
    z, seen, after, _ = hand.trained(X0)
    h, result = one_step(
        bl.solvers.v_pbgd(PROBLEM, inner=ALPHA, outer=BETA, penalty=LAMBDA, inner_steps=N), given("epochs")
    )
    close(h, penalized(hand, X0, Y0, z, N - 1, seen), rtol=1e-8)
    close(result.model_state["mean"], after["mean"])
    h, result = one_step(bl.solvers.bome(PROBLEM, inner=ALPHA, outer=BETA, inner_steps=N), given("epochs"))
    close(h, penalized(hand, X0, Y0, z, N - 1, seen, result.trace["penalty"][0]), rtol=1e-8)
    close(result.model_state["mean"], after["mean"])
    assert result.model_state["n"] == N


@pytest.mark.slow
def test_d_tfbo_draws_for_every_step_on_y():
    hand = Hand(drawn("epochs", N), 0)

    def move(y, d, squared):
        squared = squared + d @ d
        return y - d / jnp.sqrt(squared), squared

    y, _, after, _ = hand.train(X0, Y0, STATE0, move, 1.0)
    _, result = one_step(bl.solvers.d_tfbo(PROBLEM, inner_steps=N), given("epochs"))
    close(result.y, y)
    close(result.model_state["mean"], after["mean"])
    assert result.model_state["n"] == N


TASKS = bl.Batch(
    inner=(rng.normal(size=(3, 4, 3)), rng.normal(size=(3, 4))),
    outer=(rng.normal(size=(3, 5, 3)), rng.normal(size=(3, 5))),
)


def g_of_task(x, y, batch, *, key, state):
    return g(x[:2], y, batch, key=key, state=state)


def f_of_task(x, y, batch, *, key, state):
    return f(x, y, batch, key=key, state=state)


META = {
    "maml": lambda problem: bl.maml(problem, inner=ALPHA, outer=BETA, inner_steps=N),
    "maml, few points kept": lambda problem: bl.maml(
        problem, inner=ALPHA, outer=BETA, inner_steps=N, checkpoint_every=2
    ),
    "fomaml": lambda problem: bl.solvers.fomaml(problem, inner=ALPHA, outer=BETA, inner_steps=N),
    "reptile": lambda problem: bl.solvers.reptile(problem, inner=ALPHA, outer=BETA, inner_steps=N),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", META)
def test_meta_learners_adapt_with_a_key_and_a_state_per_step(method):
    problem, keys = bl.Problem(inner=g_of_task, outer=f_of_task), jax.random.split(Hand([], 0).key, 3)

    def adapted(x, i):
        hand = Hand([jax.tree.map(lambda a: a[i], TASKS)] * N, 0)
        hand.key = keys[i]
        y, seen, after, _ = hand.train(x[:2], x, STATE0)
        return hand, y, seen, after

    def outer(x):
        ends = [(*adapted(x, i), i) for i in range(3)]
        return jnp.mean(jnp.stack([hand.f(x, y, N - 1, seen) for hand, y, seen, _, _ in ends]))

    def first_order(x):
        def of(hand, y, seen):
            f_x, f_y = jax.grad(lambda x, y: hand.f(x, y, N - 1, seen), (0, 1))(x, y)
            return f_x + f_y

        return jnp.mean(jnp.stack([of(*adapted(x, i)[:3]) for i in range(3)]), 0)

    expected = {
        "maml": jax.grad(outer),
        "fomaml": first_order,
        "reptile": lambda x: jnp.mean(jnp.stack([x - adapted(x, i)[1] for i in range(3)]), 0),
    }[method.partition(",")[0]]
    expected = jax.jit(expected)(Y0)
    h, result = one_step(META[method](problem), TASKS, start=(Y0, Y0))
    close(h, expected)
    close(result.trace["outer_value"][0], outer(Y0))
    close(result.model_state["mean"], np.mean([adapted(Y0, i)[3]["mean"] for i in range(3)], 0))
    assert result.model_state["n"] == N
