"""The count must be of what runs: inside loops, behind conditions, under vmap, and without what nobody uses."""

import inspect

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from bilevel.batch import Batch
from bilevel.counting import Counts, counted, counted_step, counting, oracle_calls, warm_up_calls
from bilevel.counting.marked import CountedOracles
from bilevel.loop.data.streams import epochs
from bilevel.loop.scan import warm_up
from bilevel.loop.state import start
from bilevel.oracles import Oracles
from bilevel.problem import Problem
from bilevel.solvers.adjoints.base import steps as gradient_steps
from bilevel.solvers.algorithms.aid import aid
from bilevel.solvers.algorithms.itd import itd
from bilevel.solvers.algorithms.soba import soba

A = jnp.array([[2.0, 0.5], [0.5, 1.0]])
X, Y = jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0])
PLAIN = Problem(
    inner=lambda x, y: 0.5 * y @ A @ y - jnp.sin(x) @ y + 0.1 * jnp.sum(y**4),
    outer=lambda x, y: jnp.sum(jnp.cos(x) * (y - 1) ** 2) + 0.1 * jnp.sum(x**2),
)
ORACLES = counted(PLAIN).oracles
L = 20.0


def calls(function, *args) -> Counts:
    """What a program needs, counted as it runs compiled."""
    _, counts = jax.jit(lambda *args: counting(function)(*args))(*args)
    return Counts(*map(int, counts))


def same(a, b) -> bool:
    """Bit for bit."""
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.asarray(u).tobytes() == np.asarray(v).tobytes()
        for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


# Each method of the oracles: what it returns as a tree, and what all of that costs.
METHODS = {
    "inner_gradient": (lambda o, x, y: o.inner_gradient(x, y), Counts(gradients_g=1)),
    "outer_gradients": (lambda o, x, y: o.outer_gradients(x, y), Counts(gradients_f=2)),
    "inner_gradients": (lambda o, x, y: o.inner_gradients(x, y), Counts(gradients_g=2)),
    "curvature": (
        lambda o, x, y: (c := o.curvature(x, y), c.hessian(y), c.cross(y), c.shared().hessian(x))[1:],
        Counts(0, 0, 2, 1),
    ),
    "outer_curvature": (
        lambda o, x, y: (c := o.outer_curvature(x, y), c.hessian(y), c.cross(y), c.cross(x))[1:],
        Counts(0, 0, 1, 2),
    ),
    "along": (lambda o, x, y: o.along(x, y, y), Counts(0, 1, 1, 1)),
    "linearize": (
        lambda o, x, y: (g := o.linearize(x, y), g.gradient, g.hessian(y), g.hessian(x), g.cross(y))[1:],
        Counts(0, 1, 2, 1),
    ),
    "linearize_outer": (
        lambda o, x, y: (f := o.linearize_outer(x, y), f.gradient, f.hessian(y), f.cross(y), f.cross(x))[1:],
        Counts(1, 0, 1, 2),
    ),
    "linearize_jointly": (
        lambda o, x, y: (g := o.linearize_jointly(x, y), g.gradient, g.push(x, y))[1:],
        Counts(0, 1, 1, 1),
    ),
}


def test_every_oracle_is_counted():
    """An oracle added later must be counted too, or a table of costs would silently miss it."""
    public = {name for name, _ in inspect.getmembers(Oracles, inspect.isfunction) if not name.startswith("_")}
    public.remove("linearise")  # a deprecated spelling, which calls `linearize`
    assert public == METHODS.keys()
    for name in public:
        assert getattr(CountedOracles, name) is not getattr(Oracles, name), f"{name} is not counted"


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_each_derivative_has_its_own_count_and_the_plain_value(name):
    method, cost = METHODS[name]
    assert calls(lambda x, y: method(ORACLES, x, y), X, Y) == cost
    plain = jax.jit(lambda x, y: method(PLAIN.oracles, x, y))(X, Y)
    counted_values, _ = jax.jit(counting(lambda x, y: method(ORACLES, x, y)))(X, Y)
    assert same(counted_values, plain)
    assert same(method(ORACLES, X, Y), method(PLAIN.oracles, X, Y))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["outer_gradients", "inner_gradients"])
def test_a_gradient_counts_however_it_is_taken_out_and_not_if_it_is_not_used(name):
    def unpacked(pair):
        _, x, y = pair
        return x + y

    ways = {
        unpacked: 2,
        lambda pair: sum(pair[1:]): 2,
        lambda pair: pair.x + pair.y: 2,
        lambda pair: jax.tree.leaves(pair): 2,
        lambda pair: pair._asdict()["x"]: 1,
        lambda pair: (pair.x, pair.x): 1,
        lambda pair: pair[2]: 1,
        lambda pair: pair.value: 0,
        lambda pair: 0 * pair.value + pair[1:][1]: 1,
    }
    for take, expected in ways.items():
        counts = calls(lambda x, y, take=take: take(getattr(ORACLES, name)(x, y)), X, Y)
        assert counts == (Counts(expected) if name == "outer_gradients" else Counts(0, expected))


@pytest.mark.slow
def test_a_product_without_its_gradient():
    assert calls(lambda x, y: ORACLES.linearize(x, y).hessian(y), X, Y) == Counts(hessian_products=1)
    assert calls(lambda x, y: ORACLES.linearize(x, y).cross(y), X, Y) == Counts(cross_products=1)
    assert calls(lambda x, y: ORACLES.linearize_jointly(x, y).push(x, y), X, Y) == Counts(0, 0, 1, 1)


def test_part_of_a_gradient_that_is_a_tree_counts_as_one():
    problem = counted(
        Problem(inner=lambda x, y: jnp.sum(y["a"] ** 2) + x * y["b"] ** 2, outer=lambda x, y: x)
    )
    y = {"a": jnp.ones(3), "b": jnp.ones(())}
    assert calls(lambda y: problem.oracles.inner_gradient(1.0, y), y) == Counts(gradients_g=1)
    assert calls(lambda y: problem.oracles.inner_gradient(1.0, y)["b"], y) == Counts(gradients_g=1)


@pytest.mark.parametrize("turns", [0, 3, 7])
def test_loops_count_the_turns_they_take(turns):
    def program(turns, y):
        step = lambda carry: (carry[0] - 1, carry[1] - 0.1 * ORACLES.inner_gradient(X, carry[1]))
        return lax.while_loop(lambda carry: carry[0] > 0, step, (turns, y))

    assert calls(program, turns, Y) == Counts(gradients_g=turns)
    assert calls(
        lambda y: lax.fori_loop(0, turns, lambda _, y: ORACLES.inner_gradient(X, y), y), Y
    ) == Counts(0, turns)


@pytest.mark.slow
def test_a_condition_that_takes_derivatives_counts_once_more_than_its_loop():
    def program(y):
        long = lambda y: jnp.sum(ORACLES.inner_gradient(X, y) ** 2) > 1e-6
        return lax.while_loop(long, lambda y: y - 0.1 * ORACLES.linearize(X, y).gradient, y)

    counts = calls(program, Y)
    turns = 0
    y = Y
    while jnp.sum(PLAIN.oracles.inner_gradient(X, y) ** 2) > 1e-6:
        y, turns = y - 0.1 * PLAIN.oracles.inner_gradient(X, y), turns + 1
    assert turns > 3
    assert counts == Counts(gradients_g=turns + turns + 1)


@pytest.mark.slow
def test_loops_drop_what_dies_in_them():
    def scanned(wanted):
        def body(carry, a):
            y, other, unused = carry
            g = ORACLES.linearize(X, y)
            f = ORACLES.outer_gradients(X, y)
            return (y - 0.1 * a * g.gradient, other + f.x, unused + g.hessian(y)), (g.cross(y), f.value)

        (y, other, unused), (cross, value) = lax.scan(body, (Y, X, Y), jnp.arange(3.0))
        return {"y": y, "other": other, "unused": unused, "cross": cross, "value": value}[wanted]

    assert calls(lambda: scanned("y")) == Counts(gradients_g=3)
    assert calls(lambda: scanned("value")) == Counts(
        gradients_g=3
    )  # the values at the y that the gradients lead to
    assert calls(lambda: scanned("other")) == Counts(gradients_f=3, gradients_g=3)
    assert calls(lambda: scanned("unused")) == Counts(gradients_g=3, hessian_products=3)
    assert calls(lambda: scanned("cross")) == Counts(gradients_g=3, cross_products=3)

    def looped(i):
        def body(carry):
            n, y, other = carry
            return n - 1, ORACLES.inner_gradient(X, y), other + ORACLES.outer_gradients(X, y).y

        return lax.while_loop(lambda carry: carry[0] > 0, body, (5, Y, Y))[i]

    assert [calls(lambda i=i: looped(i)) for i in range(3)] == [Counts(), Counts(0, 5), Counts(5, 5)]


def test_a_variable_that_only_a_later_turn_needs_is_alive():
    """a → b → c, one hand-over a turn: c after three turns depends on the gradient that went into a."""

    def body(carry, _):
        a, b, _ = carry
        return (ORACLES.inner_gradient(X, a), a, b), None

    chain = lambda length: lax.scan(body, (Y, Y, Y), length=length)[0][2]
    assert calls(lambda: chain(4)) == Counts(gradients_g=4)


@pytest.mark.slow
def test_scans_inside_scans_forwards_and_backwards():
    def inner(y, a):
        return y - a * ORACLES.inner_gradient(X, y), ORACLES.outer_gradients(X, y).x

    def outer(y, rows):
        y, xs = lax.scan(inner, y, rows, reverse=True)
        return ORACLES.linearize(X, y).hessian(y), jnp.sum(xs)

    program = lambda y: lax.scan(outer, y, jnp.linspace(0.0, 0.02, 12).reshape(4, 3), unroll=2)
    assert calls(program, Y) == Counts(gradients_f=12, gradients_g=12, hessian_products=4)
    plain, _ = jax.jit(counting(program))(Y)
    assert same(plain, jax.jit(program)(Y))


@pytest.mark.slow
def test_branches_count_when_taken():
    def program(i, y):
        return lax.switch(
            i,
            [
                lambda y: y,
                lambda y: ORACLES.inner_gradient(X, y),
                lambda y: ORACLES.linearize(X, y).hessian(y),
            ],
            y,
        )

    assert [calls(program, i, Y) for i in range(3)] == [Counts(), Counts(0, 1), Counts(0, 0, 1)]

    def half_dead(p, y):
        pair = lambda y: ORACLES.outer_gradients(X, y)[1:]
        return lax.cond(p, pair, lambda y: (y, ORACLES.inner_gradient(X, y)), y)[0]

    assert [calls(half_dead, p, Y) for p in (True, False)] == [Counts(gradients_f=1), Counts()]

    def often(y):  # the branch changes from turn to turn
        body = lambda i, y: lax.cond(i % 3 == 0, lambda y: ORACLES.inner_gradient(X, y), lambda y: 0.5 * y, y)
        return lax.fori_loop(0, 10, body, y)

    assert calls(often, Y) == Counts(gradients_g=4)


@pytest.mark.slow
def test_vmap_counts_every_element():
    dense = lambda x, y: jax.vmap(ORACLES.linearize(x, y).hessian)(jnp.eye(2))
    assert calls(dense, X, Y) == Counts(hessian_products=2)
    over_y = jax.vmap(lambda y: ORACLES.inner_gradient(X, y))
    assert calls(over_y, jnp.ones((5, 2))) == Counts(gradients_g=5)
    assert calls(jax.vmap(over_y), jnp.ones((3, 5, 2))) == Counts(gradients_g=15)
    both = jax.vmap(lambda x, y: ORACLES.outer_gradients(x, y), in_axes=(0, 1))
    assert calls(both, jnp.ones((4, 2)), jnp.ones((2, 4))) == Counts(gradients_f=8)
    same_for_all = jax.vmap(lambda a: a * ORACLES.inner_gradient(X, Y))  # evaluated once
    assert calls(same_for_all, jnp.ones((6, 1))) == Counts(gradients_g=1)
    looped = jax.vmap(lambda y: lax.fori_loop(0, 3, lambda _, y: ORACLES.inner_gradient(X, y), y))
    assert calls(looped, jnp.ones((5, 2))) == Counts(gradients_g=15)


@pytest.mark.slow
def test_a_loop_under_vmap_goes_on_for_all_until_the_last_has_finished():
    def loop(turns, y):
        body = lambda carry: (carry[0] - 1, carry[1] - 0.1 * ORACLES.inner_gradient(X, carry[1]))
        return lax.while_loop(lambda carry: carry[0] > 0, body, (turns, y))

    turns, y = jnp.array([[2, 0], [6, 1]]), jnp.arange(8.0).reshape(2, 2, 2)
    from_one = jax.vmap(jax.vmap(loop, in_axes=(0, None)), in_axes=(0, None))
    for program, begin in ((jax.vmap(jax.vmap(loop)), y), (from_one, Y)):
        assert calls(program, turns, begin) == Counts(gradients_g=4 * 6)
        assert same(jax.jit(counting(program))(turns, begin)[0], jax.jit(program)(turns, begin))


def test_vmap_over_part_of_a_tree():
    problem = counted(Problem(inner=lambda x, y: x * y["a"] ** 2 + y["b"] ** 2, outer=lambda x, y: x))
    gradient = lambda x: problem.oracles.inner_gradient(
        x, {"a": 1.0, "b": 2.0}
    )  # only the first leaf knows x
    assert calls(jax.vmap(gradient), jnp.ones(7)) == Counts(gradients_g=7)
    empty = counted(Problem(inner=lambda x, y: jnp.sum(y * jnp.sum(x)), outer=lambda x, y: jnp.sum(x)))
    assert calls(empty.oracles.inner_gradient, X, jnp.zeros(0)) == Counts(gradients_g=1)


@pytest.mark.slow
def test_through_every_kind_of_call():
    @jax.custom_vjp
    def with_vjp(y):
        return ORACLES.inner_gradient(X, y)

    with_vjp.defvjp(lambda y: (with_vjp(y), None), lambda _, ct: (ct,))
    with_jvp = jax.custom_jvp(lambda y: ORACLES.inner_gradient(X, y))
    with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), *tangents))
    for wrapped in (with_vjp, with_jvp, jax.checkpoint(with_jvp.fun), jax.jit(jax.jit(with_jvp.fun))):
        assert calls(wrapped, Y) == Counts(gradients_g=1)
        assert calls(lambda y, f=wrapped: (f(y), y)[1], Y) == Counts()
    # Reverse mode through a checkpoint evaluates again on the way back what it did not keep.
    again = jax.grad(jax.checkpoint(lambda y: jnp.sum(ORACLES.inner_gradient(X, y) ** 2)))
    assert calls(again, Y) == Counts(gradients_g=1, hessian_products=1)


@pytest.mark.slow
def test_inside_a_linear_solve_of_lineax():
    def solve(b):
        g = ORACLES.linearize(X, Y)
        operator = lx.FunctionLinearOperator(
            g.hessian, jax.eval_shape(lambda: b), lx.positive_semidefinite_tag
        )
        solver = lx.CG(rtol=1e-10, atol=1e-10, stabilise_every=None)
        return lx.linear_solve(operator, b, solver, options={"y0": 0 * b}, throw=False)

    value, steps = lambda b: solve(b).value, lambda b: solve(b).stats["num_steps"]
    turns = int(steps(X))
    assert turns > 1
    assert calls(value, X) == calls(steps, X) == Counts(hessian_products=turns + 1)  # one at y0
    together = jnp.stack([X, jnp.zeros(2), Y])
    longest = int(max(jax.vmap(steps)(together)))  # the loop goes on for all until the last has converged
    assert calls(jax.vmap(value), together) == Counts(hessian_products=3 * (longest + 1))


def test_what_cannot_be_counted_is_refused():
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(AxisType.Auto,))
    rows = PartitionSpec("rows")
    gradient = lambda y: ORACLES.inner_gradient(X, y[0])[None]
    program = jax.shard_map(gradient, mesh=mesh, in_specs=rows, out_specs=rows)
    with pytest.raises(NotImplementedError, match="'shard_map' cannot be counted"):
        calls(program, jnp.ones((2, 2)))
    harmless = jax.shard_map(lambda y: 2 * y, mesh=mesh, in_specs=rows, out_specs=rows)
    assert calls(lambda y: harmless(ORACLES.inner_gradient(X, y)), Y) == Counts(gradients_g=1)


@pytest.mark.slow
def test_whoever_differentiates_an_objective_or_an_oracle_is_counted():
    problem = counted(PLAIN)
    assert calls(problem.f, X, Y) == Counts()
    assert calls(jax.grad(problem.f), X, Y) == Counts(gradients_f=1)
    assert calls(jax.grad(problem.g, argnums=(0, 1)), X, Y) == Counts(gradients_g=2)
    gradient = lambda x, y: Y @ problem.oracles.inner_gradient(x, y)
    assert calls(jax.grad(gradient), X, Y) == Counts(cross_products=1)
    assert calls(jax.value_and_grad(gradient, argnums=1), X, Y) == Counts(0, 1, 1)
    energy = lambda v: v @ problem.oracles.linearize(X, Y).hessian(v)
    assert calls(energy, Y) == Counts(hessian_products=1)
    assert calls(jax.grad(energy), Y) == Counts(hessian_products=2)


@pytest.mark.slow
def test_a_line_search_is_counted_against_callbacks():
    ticks = []

    @jax.custom_vjp
    def inner(x, y):
        return PLAIN.inner(x, y)

    def backward(point, ct):
        jax.debug.callback(lambda _: ticks.append(1), ct)
        return jax.tree.map(lambda a: ct * a, jax.grad(PLAIN.inner, argnums=(0, 1))(*point))

    inner.defvjp(lambda x, y: (PLAIN.inner(x, y), (x, y)), backward)
    problem = Problem(inner=inner, outer=PLAIN.outer)
    plain, ticking = (aid(p, inner=optax.lbfgs(), adjoint=1 / L, outer=0.1 / L) for p in (PLAIN, problem))
    state = plain.init(X, Y)
    with jax.numpy_dtype_promotion("standard"):  # optax's line search needs it
        counts = warm_up_calls(plain, state, steps=4)
        jax.block_until_ready(jax.jit(lambda state: warm_up(ticking, state, steps=4))(state))
    jax.effects_barrier()
    assert counts == Counts(gradients_g=len(ticks))
    assert len(ticks) > 4  # more than one a step, so it was the search that was counted


SOLVERS = {
    # The paper: Gc = 3K and Mv = 2K for AID (proof of Theorem 5.9), one product for ITD.
    "aid": (lambda p: aid(p, inner=1 / L, adjoint=1 / L, outer=0.1 / L), Counts(2, 1, 1, 1)),
    "itd": (lambda p: itd(p, inner=1 / L, outer=0.1 / L), Counts(2, 1, 0, 1)),
    "soba": (lambda p: soba(p, inner=1 / L, adjoint=1 / L, outer=0.1 / L), Counts(2, 1, 1, 1)),
    "aid, N = Q = 4": (
        lambda p: aid(p, inner=1 / L, adjoint=gradient_steps(1 / L, 4), outer=0.1 / L, inner_steps=4),
        Counts(2, 4, 4, 1),
    ),
    "itd, N = 6": (lambda p: itd(p, inner=1 / L, outer=0.1 / L, inner_steps=6), Counts(2, 6, 6, 6)),
    "itd, T = 2": (
        lambda p: itd(p, inner=1 / L, outer=0.1 / L, inner_steps=6, truncate=2),
        Counts(2, 6, 2, 2),
    ),
    # Two segments of two steps each are walked again.
    "itd, kept": (
        lambda p: itd(p, inner=1 / L, outer=0.1 / L, inner_steps=5, checkpoint_every=2),
        Counts(2, 5 + 4, 5, 5),
    ),
    # The derivative of rmsprop's step depends on the gradient: the way back takes it again, but for the last step.
    "itd, rmsprop": (
        lambda p: itd(p, inner=optax.rmsprop(1e-2), outer=0.1 / L, inner_steps=6),
        Counts(2, 6 + 5, 6, 6),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_the_counts_of_a_step(name):
    make, per_step = SOLVERS[name]
    solver, K = make(PLAIN), 7
    state = solver.init(X, Y)
    assert oracle_calls(solver, state) == per_step
    assert oracle_calls(solver, state, steps=K) == Counts(*(K * each for each in per_step))
    assert warm_up_calls(solver, state, steps=K) == Counts(gradients_g=K)

    after, info, counts = jax.jit(lambda state: counted_step(solver)(state))(state)
    assert Counts(*map(int, counts)) == per_step
    assert same((after, info), jax.jit(lambda state: solver.step(state))(state))


@pytest.mark.slow
def test_a_counted_step_counts_along_a_scan():
    solver = aid(PLAIN, inner=1 / L, adjoint=gradient_steps(1 / L, 3), outer=0.1 / L)
    step = counted_step(solver)

    @jax.jit
    def run(state):
        def body(carry, _):
            state, total = carry
            state, _, counts = step(state)
            return (state, total + counts), total

        return lax.scan(body, (state, Counts(*jnp.zeros((4, 3), int)[:, 0])), length=5)

    (_, total), before = run(solver.init(X, Y))
    assert Counts(*map(int, total)) == Counts(10, 5, 15, 5)
    np.testing.assert_array_equal(before.Mv, 4 * np.arange(5))


@pytest.mark.slow
def test_with_data_runs_keys_and_states():
    def inner(x, y, rows, *, key, state):
        noise = jax.random.normal(key, y.shape, y.dtype)
        return jnp.mean((rows @ y - x[0]) ** 2) + noise @ y, {"size": jnp.sum(y**2)}, state + 1

    def outer(x, y, rows):
        return jnp.mean((rows @ y) ** 2) + x @ x, {"loss": y[0]}

    solver = aid(Problem(inner=inner, outer=outer), inner=0.1, adjoint=0.1, outer=0.1)
    rows = jnp.arange(16.0).reshape(8, 2) / 16
    data = epochs(Batch(inner=rows, outer=rows), 3, seed=1)
    run = start(solver, X, Y, data, model_state=jnp.int32(0))
    assert oracle_calls(solver, run, data, steps=6) == Counts(12, 6, 6, 6)
    assert warm_up_calls(solver, run, data, steps=6) == Counts(gradients_g=6)


def test_counts_add_and_subtract():
    assert Counts(1, 2, 3, 4) + Counts(1, 1, 1, 1) - Counts(0, 1, 2, 3) == Counts(2, 2, 2, 2)
    assert (Counts(1, 2, 3, 4).Gc, Counts(1, 2, 3, 4).Mv) == (3, 7)
