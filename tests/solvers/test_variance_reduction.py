"""Methods that remember earlier batches: their recurrences in NumPy, their limits, their data and their costs."""

import importlib.util
import re
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import bilevel as bl
from bilevel.loop.data.streams import draw
from bilevel.solvers.parts import whole
from marks import slow

K, ALPHA, ETA, BETA, SIZE = 7, 0.3, 0.2, 0.15, 4
N, M, D = 12, 8, 3  # inner examples, outer examples, entries of x and of y


class Sampled:
    """Losses of examples whose every derivative depends on the example and on the point, with NumPy derivatives."""

    def __init__(self):
        rng = np.random.default_rng(3)
        root, self.a = rng.normal(size=(N, D, D)), rng.normal(size=(N, D))
        self.A = np.eye(D) + 0.3 * root @ root.transpose(0, 2, 1)
        self.w, self.s = rng.uniform(0.2, 0.6, N), rng.uniform(0.0, 0.2, N)
        self.t, self.c = rng.normal(size=(M, D)), rng.uniform(0.5, 1.5, M)
        self.data = bl.Batch(*jax.tree.map(jnp.asarray, ((self.A, self.a, self.w, self.s), (self.t, self.c))))
        self.problem = bl.Problem(inner=self.g, outer=self.f)
        self.x0, self.y0 = np.array([0.2, -0.3, 0.1]), np.array([0.5, -0.4, 0.3])

    @staticmethod
    def g(x, y, batch):
        A, a, w, s = (jnp.mean(part, axis=0) for part in batch)
        ridge = 0.5 * w * jnp.sum(jnp.exp(x) * y * y)
        return 0.5 * y @ A @ y - a @ y + ridge + 0.25 * s * jnp.sum(y**4)

    @staticmethod
    def f(x, y, batch):
        t, c = batch
        miss = y[None, :] - t
        return jnp.mean(0.5 * c * jnp.sum(miss * miss, axis=1)) + 0.5 * jnp.mean(c) * jnp.sum(x * x)

    def g_y(self, x, y, rows):
        A, a, w, s = (part[rows].mean(axis=0) for part in (self.A, self.a, self.w, self.s))
        return A @ y - a + w * np.exp(x) * y + s * y**3

    def H(self, x, y, rows):
        A, w, s = (part[rows].mean(axis=0) for part in (self.A, self.w, self.s))
        return A + np.diag(w * np.exp(x) + 3 * s * y**2)

    def C(self, x, y, rows):
        return np.diag(self.w[rows].mean() * np.exp(x) * y)

    def f_xy(self, x, y, rows):
        c = self.c[rows]
        return c.mean() * x, np.mean(c[:, None] * (y - self.t[rows]), axis=0)

    def hypergradient(self, x):
        y, everything = np.zeros(D), np.arange(N)
        for _ in range(30):
            y = y - np.linalg.solve(self.H(x, y, everything), self.g_y(x, y, everything))
        f_x, f_y = self.f_xy(x, y, np.arange(M))
        return f_x - self.C(x, y, everything) @ np.linalg.solve(self.H(x, y, everything), f_y)


@cache
def sampled() -> Sampled:
    return Sampled()


def after(solver, stream, start=None, steps=K):
    """The last state, and the trace."""
    return _went(solver, stream, start, steps)[:2]


def follow(solver, stream, start=None):
    """The last state, the trace, and the row numbers of every draw of every step."""
    state, trace, rows = _went(solver, stream, start, K)
    inner, outer = (np.array(each) for each in rows)
    return state, trace, [list(zip(*step, strict=True)) for step in zip(inner, outer, strict=True)]


def _went(solver, stream, start, steps):
    """One program: the rows are those of the run's own cursor."""
    case = sampled()

    def rows_of(stream, cursor):
        cursor, batch = draw(stream, cursor, solver.draws)
        rows = getattr(batch, "stacked", batch).rows
        return cursor, jax.tree.map(lambda a: a.reshape(solver.draws, -1), rows)

    @jax.jit
    def go(stream):
        run = bl.start(solver, case.x0, case.y0, stream) if start is None else start(stream)
        rows = lax.scan(lambda cursor, _: rows_of(stream, cursor), run.cursor, length=steps)[1]
        run, trace = bl.scan(solver, run, stream, steps=steps)
        return run.solver, trace, rows

    return go(stream)


def close(state, **expected):
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(state, name), value, rtol=1e-10, atol=1e-13, err_msg=name)


@pytest.mark.mathematics("saba")
@pytest.mark.parametrize("filled", [slow(True), False], ids=["filled", "as in the authors' code"])
def test_saba(filled):
    """Without the first pass it is the authors' code step for step (theirs has −v for v)."""
    p, solver = sampled(), bl.saba(sampled().problem, inner=ALPHA, adjoint=ETA, outer=BETA)

    def empty(stream):
        run = bl.start(solver, p.x0, p.y0, stream)
        nothing = optax.tree.zeros_like((run.solver.of_g, run.solver.of_f))
        state = run.solver._replace(of_g=nothing[0], of_f=nothing[1])
        return bl.RunState(state, run.model, run.cursor, run.step, run.warm, run.seed, run.fingerprint)

    state, trace, drawn = follow(solver, bl.blocks(p.data, SIZE, seed=4), None if filled else empty)
    x, y, v = p.x0, p.y0, np.zeros(D)
    cut = lambda count: np.arange(count).reshape(-1, SIZE)

    def of_g(rows):
        return np.stack([p.g_y(x, y, rows), p.H(x, y, rows) @ v, p.C(x, y, rows) @ v])

    def of_f(rows):
        return np.stack(p.f_xy(x, y, rows))

    last_g, last_f = (np.stack([of(rows) for rows in cut(n)]) for of, n in ((of_g, N), (of_f, M)))
    if not filled:
        last_g, last_f = 0 * last_g, 0 * last_f
    for k, [(inner, outer)] in enumerate(drawn):
        i, j = inner[0] // SIZE, outer[0] // SIZE
        np.testing.assert_array_equal(inner, cut(N)[i])
        g = of_g(inner) - last_g[i] + last_g.mean(axis=0)
        f = of_f(outer) - last_f[j] + last_f.mean(axis=0)
        last_g[i], last_f[j] = of_g(inner), of_f(outer)
        np.testing.assert_allclose(trace["hypergradient_norm"][k], np.linalg.norm(f[0] - g[2]), rtol=1e-10)
        x, y, v = x - BETA * (f[0] - g[2]), y - ALPHA * g[0], v - ETA * (g[1] - f[1])
    close(state, x=x, y=y, v=v)
    close(state.of_g.mean, gradient=last_g.mean(axis=0)[0], cross=last_g.mean(axis=0)[2])


@pytest.mark.mathematics("srba")
@pytest.mark.parametrize("make", [slow(bl.blocks), bl.epochs])
def test_srba(make, monkeypatch):
    """With the full pass in pieces, and in one."""
    if make is bl.blocks:
        monkeypatch.setattr(whole, "CACHE", 0)
    p, period = sampled(), 3
    solver = bl.solvers.srba(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA, period=period)
    state, _, drawn = follow(solver, make(p.data, SIZE, seed=4))

    def directions(x, y, v, inner, outer):
        f_x, f_y = p.f_xy(x, y, outer)
        return np.stack([f_x - p.C(x, y, inner) @ v, p.g_y(x, y, inner), p.H(x, y, inner) @ v - f_y])

    now = before = (p.x0, p.y0, np.zeros(D))
    for k, [(inner, outer)] in enumerate(drawn):
        if k % period == 0:
            d = directions(*now, np.arange(N), np.arange(M))
        else:
            d = d + directions(*now, inner, outer) - directions(*before, inner, outer)
        before, now = now, tuple(a - size * b for a, size, b in zip(now, (BETA, ALPHA, ETA), d, strict=True))
    close(state, x=now[0], y=now[1], v=now[2])


def estimate(p, x, y, draws, invert):
    """∇̂Φ and ∇_y g, on the last and on the first of the draws."""
    (S, _), (cross, outer) = draws[0], draws[-1]
    f_x, f_y = p.f_xy(x, y, outer)
    v = invert(x, y, f_y, [inner for inner, _ in draws[1:-1]])
    return np.stack([f_x - p.C(x, y, cross) @ v, p.g_y(x, y, S)])


def neumann(p, x, y, b, rows):
    total = b
    for each in rows:
        b = b - ETA * p.H(x, y, each) @ b
        total = total + b
    return ETA * total


def THETA(k):
    return 0.9 / (1 + jnp.asarray(k, float))


@pytest.mark.mathematics("mrbo")
def test_mrbo():
    p = sampled()
    solver = bl.solvers.mrbo(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA, products=2, momentum=THETA)
    state, _, drawn = follow(solver, bl.iid(p.data, SIZE, seed=4))
    invert = lambda *at: neumann(p, *at)
    _momentum(p, state, drawn, lambda k: invert)


@pytest.mark.mathematics("sustain")
def test_sustain():
    p, Q = sampled(), 4
    solver = bl.solvers.sustain(
        p.problem, inner=ALPHA, adjoint=ETA, outer=BETA, products=Q, momentum=THETA, seed=2
    )
    state, trace, drawn = follow(solver, bl.iid(p.data, SIZE, seed=4))
    factors = np.asarray(trace["factors"])
    assert len(set(factors.tolist())) > 1
    assert set(factors.tolist()) <= set(range(Q))

    def invert(k):
        def product(x, y, b, rows):
            for each in rows[: factors[k]]:
                b = b - ETA * p.H(x, y, each) @ b
            return Q * ETA * b

        return product

    _momentum(p, state, drawn, invert)


def _momentum(p, state, drawn, invert):
    now, before, d = (p.x0, p.y0), (p.x0, p.y0), None
    for k, draws in enumerate(drawn):
        new, old = (estimate(p, *at, draws, invert(k)) for at in (now, before))
        d = new if k == 0 else new + (1 - float(THETA(k))) * (d - old)
        before, now = now, (now[0] - BETA * d[0], now[1] - ALPHA * d[1])
    close(state, x=now[0], y=now[1])


@pytest.mark.mathematics("vrbo")
@pytest.mark.parametrize("batches", [slow("independent"), "shared"])
def test_vrbo(batches):
    p, Q, turns, period = sampled(), 2, 2, 3
    solver = bl.solvers.vrbo(
        p.problem,
        inner=ALPHA,
        adjoint=ETA,
        outer=BETA,
        products=Q,
        inner_steps=turns,
        period=period,
        batches=batches,
    )
    state, _, drawn = follow(solver, bl.iid(p.data, SIZE, seed=4))
    per = 1 if batches == "shared" else Q + 2
    invert = lambda *at: neumann(p, *at)
    (x, y), everything = (p.x0, p.y0), (np.arange(N), np.arange(M))
    for k, draws in enumerate(drawn):
        if k % period == 0:
            d = estimate(p, x, y, [everything] * (Q + 2), invert)
        before, x = (x, y), x - BETA * d[0]
        for t in range(turns + 1):
            part = draws[per * t : per * (t + 1)] * (Q + 2 if per == 1 else 1)
            d = d + estimate(p, x, y, part, invert) - estimate(p, *before, part, invert)
            before, y = (x, y), y - ALPHA * d[1] if t < turns else y
    close(state, x=x, y=y)


@pytest.mark.mathematics("fsla")
def test_fsla():
    p = sampled()
    solver = bl.solvers.fsla(
        p.problem, inner=ALPHA, adjoint=ETA, outer=BETA, momentum=THETA, batches="independent"
    )
    state, _, drawn = follow(solver, bl.iid(p.data, SIZE, seed=4))
    x, y, v, d = p.x0, p.y0, np.zeros(D), None
    before = x
    for k, [(S, _), (T, for_v), (R, for_x)] in enumerate(drawn):
        h = lambda x, y, v, R=R, for_x=for_x: p.f_xy(x, y, for_x)[0] - p.C(x, y, R) @ v
        old = h(before, y, v)
        y = y - ALPHA * p.g_y(x, y, S)
        v = v - ETA * (p.H(x, y, T) @ v - p.f_xy(x, y, for_v)[1])
        d = h(x, y, v) if k == 0 else h(x, y, v) + (1 - float(THETA(k))) * (d - old)
        before, x = x, x - BETA * d
    close(state, x=x, y=y, v=v)


@pytest.mark.slow
def test_constant_step_sizes_reach_the_solution_where_soba_does_not():
    p = sampled()
    left = {}
    for solver in (
        bl.saba(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA),
        bl.solvers.srba(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA, period=5),
        bl.soba(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA),
    ):
        state, _ = after(solver, bl.blocks(p.data, SIZE, seed=1), steps=1500)
        left[solver.name] = np.linalg.norm(p.hypergradient(np.asarray(state.x)))
    assert left["SABA"] < 1e-12
    assert left["SRBA"] < 1e-12
    assert left["SOBA"] > 1e-3


@pytest.mark.slow
def test_saba_on_blocks_resumes_bitwise_and_sweeps():
    p, stream = sampled(), bl.blocks(sampled().data, bl.Levels(inner=SIZE, outer=None), seed=1)
    solver = bl.saba(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA)
    unbroken = bl.run(solver, p.x0, p.y0, data=stream, steps=6)
    half = bl.run(solver, p.x0, p.y0, data=stream, steps=3)
    rest = bl.run(solver, data=stream, steps=3, resume=half)
    for a, b in zip(jax.tree.leaves(unbroken.run), jax.tree.leaves(rest.run), strict=True):
        np.testing.assert_array_equal(a, b)
    assert unbroken.run.solver.of_g.last.gradient.shape == (N // SIZE, D)
    assert unbroken.run.solver.of_f.last.x.shape == (1, D)
    swept = bl.sweep(
        [solver, bl.saba(p.problem, inner=ALPHA, adjoint=ETA, outer=0.5 * BETA)],
        p.x0,
        p.y0,
        data=stream,
        steps=6,
    )
    np.testing.assert_allclose(swept[0].x, unbroken.x, rtol=1e-10)
    assert np.any(swept[1].x != swept[0].x)


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_see_it")
def test_data_that_do_not_fit_are_refused():
    p = sampled()
    saba, srba = (
        bl.saba(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA),
        bl.solvers.srba(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA),
    )

    def refused(words, solver, data):
        with pytest.raises(ValueError, match=words):
            bl.run(solver, p.x0, p.y0, data=data, steps=2)

    for make in (bl.epochs, bl.iid):
        refused(r"inner rows are drawn again.*bl\.blocks\(data, size=4\)", saba, make(p.data, SIZE))
    refused("outer rows are drawn again", saba, bl.epochs(p.data, bl.Levels(inner=None, outer=SIZE)))
    for solver in (saba, srba, bl.solvers.vrbo(p.problem, inner=ALPHA, adjoint=ETA, outer=BETA)):
        refused("a loader or a stream of your own does not hold", solver, [p.data] * 40)
    with pytest.raises(
        ValueError, match=r"blocks of 5 leave 2 of the 12 examples over.*leave 2 examples out"
    ):
        bl.blocks(p.data, 5)


def test_numbers_that_do_not_fit_are_refused():
    p = sampled().problem
    with pytest.raises(ValueError, match="period must be a whole number of at least 1, not 0"):
        bl.solvers.srba(p, inner=ALPHA, adjoint=ETA, outer=BETA, period=0)
    for make in (bl.solvers.mrbo, bl.solvers.sustain, bl.solvers.fsla):
        with pytest.raises(
            ValueError, match=r"momentum is the weight of the new gradient and at most 1, not 1\.5"
        ):
            make(p, inner=ALPHA, adjoint=ETA, outer=BETA, momentum=1.5)
        with pytest.raises(ValueError, match=r"not 'each'"):
            make(p, inner=ALPHA, adjoint=ETA, outer=BETA, batches="each")


@pytest.mark.slow
def test_blocks_come_once_per_epoch_in_another_order():
    data = bl.Batch(inner=jnp.arange(10, 34), outer=jnp.arange(8.0))
    stream = bl.blocks(data, bl.Levels(inner=2, outer=4), seed=3)

    @jax.jit
    def some(stream):
        return lax.scan(lambda cursor, _: stream.next(cursor), stream.start(0), length=36)[1]

    seen = some(stream)
    np.testing.assert_array_equal(seen.inner, 10 + seen.rows.inner)
    np.testing.assert_array_equal(seen.rows.inner[:, 0], 2 * seen.block.inner)
    np.testing.assert_array_equal(seen.rows.inner[:, 1], 2 * seen.block.inner + 1)
    orders = {tuple(epoch) for epoch in np.asarray(seen.block.inner).reshape(3, 12).tolist()}
    assert len(orders) == 3
    assert all(sorted(order) == list(range(12)) for order in orders)
    assert set(np.asarray(seen.block.outer).reshape(18, 2).sum(axis=1).tolist()) == {1}
    np.testing.assert_array_equal(seen.whole.inner[0], data.inner)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """The functions of the page's section, as its readers copy them."""
    page = (Path(__file__).parents[2] / "docs/concepts/methods-stochastic.md").read_text()
    code = re.search(r"## Recipes by name.*?^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert code
    file = tmp_path_factory.mktemp("recipes") / "recipes.py"
    file.write_text(code[1])
    spec = importlib.util.spec_from_file_location("recipes", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ma_soba(recipes):
    p, theta = sampled(), 0.3
    solver = recipes.ma_soba(p.problem, ALPHA, ETA, BETA, theta)
    state, _, drawn = follow(solver, bl.iid(p.data, SIZE, seed=4))
    x, y, v, h = p.x0, p.y0, np.zeros(D), np.zeros(D)
    for (S, _), (T, for_v), (R, for_x) in drawn:
        h = (1 - theta) * h + theta * (p.f_xy(x, y, for_x)[0] - p.C(x, y, R) @ v)
        residual = p.H(x, y, T) @ v - p.f_xy(x, y, for_v)[1]
        x, y, v = x - BETA * h, y - ALPHA * p.g_y(x, y, S), v - ETA * residual
    close(state, x=x, y=y, v=v)


def test_amigo(recipes):
    p = sampled()
    solver = recipes.amigo(p.problem, ALPHA, ETA, BETA, inner_steps=3, adjoint_steps=2)
    state, _, drawn = follow(solver, bl.iid(p.data, SIZE, seed=4))
    x, y, v = p.x0, p.y0, np.zeros(D)
    for *inner, (for_v, of_f), (for_x, last) in drawn:
        for S, _ in inner:
            y = y - ALPHA * p.g_y(x, y, S)
        assert len(inner) == 3
        f_y = p.f_xy(x, y, of_f)[1]
        for _ in range(2):
            v = v - ETA * (p.H(x, y, for_v) @ v - f_y)
        x = x - BETA * (p.f_xy(x, y, last)[0] - p.C(x, y, for_x) @ v)
    close(state, x=x, y=y, v=v)


@pytest.mark.slow
def test_ttsa(recipes):
    """With the mean over p of Q η Π_{j<p} (I − ηH_j), on the batches that were drawn."""
    p, Q = sampled(), 3
    solver = recipes.ttsa(p.problem, ALPHA, ETA, BETA, products=Q)
    with jax.numpy_dtype_promotion("standard"):  # for its schedules
        state, _, drawn = follow(solver, bl.iid(p.data, SIZE, seed=4))
    x, y = p.x0, p.y0
    for k, [(S, _), *hessians, (R, for_x)] in enumerate(drawn):
        y = y - ALPHA * (k + 1) ** -0.4 * p.g_y(x, y, S)
        f_x, f_y = p.f_xy(x, y, for_x)
        truncated = []
        for length in range(Q):
            v = f_y
            for rows, _ in hessians[:length]:
                v = v - ETA * p.H(x, y, rows) @ v
            truncated.append(Q * ETA * v)
        x = x - BETA * (k + 1) ** -0.6 * (f_x - p.C(x, y, R) @ np.mean(truncated, axis=0))
    close(state, x=x, y=y)


@pytest.mark.slow
def test_biadam(recipes):
    p, Q, m, memory, epsilon = sampled(), 2, 0.4, 0.9, 1e-3
    solver = recipes.biadam(
        p.problem, ALPHA, ETA, BETA, products=Q, momentum=m, memory=memory, epsilon=epsilon
    )
    with jax.numpy_dtype_promotion("standard"):  # for optax.adam
        state, _, drawn = follow(solver, bl.iid(p.data, SIZE, seed=4))
    x, y, u, w, a = p.x0, p.y0, np.zeros(D), np.zeros(D), np.zeros(D)
    for k, draws in enumerate(drawn):
        u = (1 - m) * u + m * p.g_y(x, y, draws[0][0])
        y = y - ALPHA * u
        h = estimate(p, x, y, draws, lambda *at: neumann(p, *at))[0]
        w, a = (1 - m) * w + m * h, memory * a + (1 - memory) * h * h
        w_hat, a_hat = w / (1 - (1 - m) ** (k + 1)), a / (1 - memory ** (k + 1))
        x = x - BETA * w_hat / (np.sqrt(a_hat) + epsilon)
    close(state, x=x, y=y)
