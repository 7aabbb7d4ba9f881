"""Costs of a step of every method: the cells of three tables are evaluated and compared with counts.

The tables are in methods.md, methods-unrolled-and-first-order.md and methods-stochastic.md. The number of batches per
step is in minibatches.md, and the cost in forward passes in large-models.md.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from measured import tables
from pages import ROOT

import bilevel as bl
from bilevel import adjoints
from bilevel.counting import Counts, counted_step
from zoo import PROBLEMS

N_X, N_Y, TASKS = 2, 3, 2
X0, Y0 = np.array([0.3, -0.2]), np.array([0.5, -0.4, 0.1])
A, B = 0.1, 0.05


def inner(x, y):
    return jnp.sum(y**2 + 0.1 * y**4) * (1 + 0.1 * jnp.sum(x**2)) - jnp.sin(x) @ y[:N_X]


def outer(x, y):
    return jnp.sum((y - 1) ** 2) * (1 + jnp.sum(x**2))


PROBLEM = bl.Problem(inner=inner, outer=outer)


def of_task(x, y, rows):
    return jnp.mean((rows @ jnp.tanh(y) - 1) ** 2) + 0.1 * x @ y**2


META = bl.Problem(inner=of_task, outer=of_task)
ROWS = np.random.default_rng(0).normal(size=(2, TASKS, 4, N_Y))

# By the first cell: a solver, and the values of the letters. A letter that the method decides is a metric of the step.
s, n = "adjoint_steps", "inner_steps"
IMPLICIT = {
    "`aid` (Algorithm 1)": (lambda p: bl.aid(p, inner=A, adjoint=A, outer=B), {}),
    "`aid(inner_steps=N, adjoint=adjoints.steps(η, Q))`": (
        lambda p: bl.aid(p, inner=A, adjoint=adjoints.steps(A, 3), outer=B, inner_steps=4),
        {"N": 4, "Q": 3},
    ),
    "`aid(adjoint=adjoints.neumann(η, Q))`": (
        lambda p: bl.aid(p, inner=A, adjoint=adjoints.neumann(A, 3), outer=B, inner_steps=4),
        {"N": 4, "Q": 3},
    ),
    "`aid(adjoint=adjoints.cg(...))`, s steps taken": (
        lambda p: bl.aid(p, inner=A, adjoint=adjoints.cg(1e-10), outer=B, inner_steps=4),
        {"N": 4, "s": s},
    ),
    "`aid(adjoint=adjoints.minres(...))`, s steps taken": (
        lambda p: bl.aid(p, inner=A, adjoint=adjoints.minres(1e-10), outer=B, inner_steps=4),
        {"N": 4, "s": s},
    ),
    "`aid(adjoint=adjoints.quasi_newton(Q, m))`": (
        lambda p: bl.aid(p, inner=A, adjoint=adjoints.quasi_newton(3, 2), outer=B, inner_steps=4),
        {"N": 4, "Q": 3, "m": 2},
    ),
    "`qnbo(gradient_steps=P, inner_steps=T, adjoint_steps=Q, memory=m)`": (
        lambda p: bl.solvers.qnbo(
            p, inner=A, outer=B, gradient_steps=2, inner_steps=4, adjoint_steps=3, memory=5
        ),
        {"P": 2, "T": 4, "Q": 3, "m": 5},
    ),
    "`aid(adjoint=adjoints.nystrom(k, δ))`": (
        lambda p: bl.aid(p, inner=A, adjoint=adjoints.nystrom(2, 0.1), outer=B, inner_steps=4),
        {"N": 4, "k": 2},
    ),
    "…as `preconditioner=` of `cg` or `minres`, s steps taken": (
        lambda p: bl.aid(
            p,
            inner=A,
            adjoint=adjoints.cg(1e-10, preconditioner=adjoints.nystrom(2, 0.1)),
            outer=B,
            inner_steps=4,
        ),
        {"N": 4, "k": 2, "s": s},
    ),
    "`soba`": (lambda p: bl.soba(p, inner=A, adjoint=A, outer=B), {}),
    "`hoag`, n inner and s adjoint steps taken": (
        lambda p: bl.hoag(p, inner=A, outer=B, max_inner_steps=9),
        {"n": n, "s": s},
    ),
    "`stocbio(inner_steps=N, products=Q)`": (
        lambda p: bl.stocbio(p, inner=A, adjoint=A, outer=B, inner_steps=4, products=3),
        {"N": 4, "Q": 3},
    ),
    "`darts`": (lambda p: bl.solvers.darts(p, inner=A, outer=B, virtual_step=A), {}),
    "`darts_first_order`": (lambda p: bl.solvers.darts_first_order(p, inner=A, outer=B), {}),
    "`sama`": (lambda p: bl.solvers.sama(p, inner=A, outer=B), {}),
}
UNLISTED = {  # as the row of the page
    "`aid` (Algorithm 1)": lambda p: bl.aid(
        p, inner=A, adjoint=A, outer=B, batches="independent"
    ),  # the calls are shared out
    "`sama`": lambda p: bl.solvers.sama(p, inner=optax.rmsprop(A), outer=optax.rmsprop(B)),
}
OTHERS = {
    "`itd` (Algorithm 2)": (lambda p: bl.itd(p, inner=A, outer=B), {}),
    "`itd(inner_steps=N)`, N > 1": (lambda p: bl.itd(p, inner=A, outer=B, inner_steps=4), {"N": 4}),
    "`itd(inner_steps=N, truncate=T)`, T > 1": (
        lambda p: bl.itd(p, inner=A, outer=B, inner_steps=5, truncate=2),
        {"N": 5, "T": 2},
    ),
    "`itd(inner_steps=N, checkpoint_every=c)`": (
        lambda p: bl.itd(p, inner=A, outer=B, inner_steps=7, checkpoint_every=3),
        {"N": 7, "c": 3},
    ),
    "`forward_itd(inner_steps=N)`": (
        lambda p: bl.solvers.forward_itd(p, inner=A, outer=B, inner_steps=3),
        {"N": 3},
    ),
    "`rtho(inner_steps=N)`": (lambda p: bl.solvers.rtho(p, inner=A, outer=B, inner_steps=3), {"N": 3}),
    "`bda(inner_steps=N)`": (lambda p: bl.solvers.bda(p, inner=A, outer=B, inner_steps=4), {"N": 4}),
    "`iaptt(inner_steps=N)`, worst at t̂": (
        lambda p: bl.solvers.iaptt(p, inner=A, outer=B, inner_steps=4),
        {"N": 4, "t̂": "truncated_at"},
    ),
    "`maml(inner_steps=N)`, per task": (lambda p: bl.maml(META, inner=A, outer=B, inner_steps=4), {"N": 4}),
    "`imaml(inner_steps=N)`, per task, s steps of CG taken": (
        lambda p: bl.imaml(META, inner=A, outer=B, proximal_weight=1.0, inner_steps=4),
        {"N": 4, "s": s},
    ),
    "`fomaml(inner_steps=N)`, per task": (
        lambda p: bl.solvers.fomaml(META, inner=A, outer=B, inner_steps=4),
        {"N": 4},
    ),
    "`reptile(inner_steps=N)`, per task": (
        lambda p: bl.solvers.reptile(META, inner=A, outer=B, inner_steps=4),
        {"N": 4},
    ),
    "`f2sa(inner_steps=T)`, `f2ba(inner_steps=T)`": (
        lambda p: bl.solvers.f2ba(p, inner=A, outer=B, penalty=5.0, inner_steps=4),
        {"T": 4},
    ),
    "`f2sa_p(order=p, inner_steps=T)`, p copies, p + 1 if p is odd": (
        lambda p: bl.solvers.f2sa_p(p, inner=A, outer=B, penalty=5.0, order=2, inner_steps=4),
        {"p": 2, "T": 4},
    ),
    "`acc_f2ba(inner_steps=T)`": (
        lambda p: bl.solvers.acc_f2ba(p, inner=A, outer=B, penalty=5.0, radius=1.0, inner_steps=4),
        {"T": 4},
    ),
    "`f3sa`": (lambda p: bl.solvers.f3sa(p, inner=A, outer=B, penalty=5.0), {}),
    "`meha`": (lambda p: bl.solvers.meha(p, inner=A, outer=B, penalty=5.0, proximal_step=1.0), {}),
    "`bome(inner_steps=T)`": (lambda p: bl.solvers.bome(p, inner=A, outer=B, inner_steps=4), {"T": 4}),
    "`v_pbgd(inner_steps=T)`": (
        lambda p: bl.solvers.v_pbgd(p, inner=A, outer=B, penalty=5.0, inner_steps=4),
        {"T": 4},
    ),
    "`g_pbgd`": (lambda p: bl.solvers.g_pbgd(p, inner=A, outer=B, penalty=5.0), {}),
    "`pzobo(inner_steps=N, directions=Q)`": (
        lambda p: bl.solvers.pzobo(p, inner=A, outer=B, inner_steps=4, directions=3),
        {"N": 4, "Q": 3},
    ),
    "`s_tfbo`": (lambda p: bl.solvers.s_tfbo(p), {}),
    "`d_tfbo(inner_steps=N, adjoint_steps=Q)`": (
        lambda p: bl.solvers.d_tfbo(p, inner_steps=4, adjoint_steps=3),
        {"N": 4, "Q": 3},
    ),
}
STOCHASTIC = {  # with the step that the row is about
    "`saba`": (lambda p, a: bl.saba(p, inner=a, adjoint=a, outer=a / 10), {}, 1),
    "`srba`, a step with a full pass": (
        lambda p, a: bl.solvers.srba(p, inner=a, adjoint=a, outer=a / 10, period=2),
        {},
        1,
    ),
    "`srba`, any other": (lambda p, a: bl.solvers.srba(p, inner=a, adjoint=a, outer=a / 10, period=2), {}, 2),
    "`mrbo(products=Q)`": (
        lambda p, a: bl.solvers.mrbo(p, inner=a, adjoint=a, outer=a / 10, products=3),
        {"Q": 3},
        1,
    ),
    "`sustain(products=Q)`, p factors drawn": (
        lambda p, a: bl.solvers.sustain(p, inner=a, adjoint=a, outer=a / 10, products=4),
        {"p": "factors"},
        2,
    ),
    "`vrbo(inner_steps=N, products=Q)`, without the full pass": (
        lambda p, a: bl.solvers.vrbo(
            p, inner=a, adjoint=a, outer=a / 10, period=2, products=3, inner_steps=2
        ),
        {"N": 2, "Q": 3},
        2,
    ),
    "`vrbo`, with it": (
        lambda p, a: bl.solvers.vrbo(
            p, inner=a, adjoint=a, outer=a / 10, period=2, products=3, inner_steps=2
        ),
        {"N": 2, "Q": 3},
        1,
    ),
    "`fsla`": (lambda p, a: bl.solvers.fsla(p, inner=a, adjoint=a, outer=a / 10), {}, 1),
}
TUNING_FREE = "`tuning_free`, P passes of N Newton directions, C products"
# Here memory is that of the state; of the others, of what a step keeps for its way back.
IN_THE_STATE = (
    "f2sa",
    "acc",
    "f3sa",
    "meha",
    "bome",
    "v_pbgd",
    "g_pbgd",
    "pzobo",
    "tuning",
    "s_tfbo",
    "d_tfbo",
)


def rows(page: str) -> dict[str, tuple[str, ...]]:
    """By the first cell, the others."""
    (table,) = (t for t in tables((ROOT / "docs/concepts" / page).read_text()) if "cross products" in t.head)
    return {name: cells for name, *cells in table.rows}


def value(cell: str, letters: dict[str, int]) -> int:
    """Of a product or sum of letters and numbers, as one writes it: 2Q(N + 1), N n_x, 2N − 1."""
    tokens = re.findall(r"\d+|n_x|t̂|[A-Za-z]|[-+()]", cell.removeprefix("up to ").replace("−", "-"))
    times = lambda a, b: a not in "(+-" and b not in ")+-"
    spelled = [f"{a}{'*' if times(a, b) else ''}" for a, b in zip(tokens, [*tokens[1:], ")"], strict=True)]
    names = {"n_x": N_X, "that": letters.get("t̂"), **letters}
    return eval("".join(spelled).replace("t̂", "that"), {"__builtins__": {}}, names)


def expected(cells: tuple[str, ...], letters: dict[str, int], tasks: int = 1) -> Counts:
    return Counts(*(tasks * value(cell, letters) for cell in cells[:4]))


def check(cells: tuple[str, ...], solver: bl.Solver, letters: dict, state, data=None, tasks: int = 1) -> None:
    """Two steps: at once where the program says it all, else one by one, with the metrics of each."""
    decided = {letter: name for letter, name in letters.items() if isinstance(name, str)}
    if not decided:
        twice = Counts(*(2 * each for each in expected(cells, letters, tasks)))
        assert bl.oracle_calls(solver, state, data, steps=2) == twice
        return
    step = jax.jit(counted_step(solver))
    for _ in range(2):
        state, info, counts = step(state, data)
        seen = letters | {letter: int(info.metrics[name]) for letter, name in decided.items()}
        assert Counts(*map(int, counts)) == expected(cells, seen, tasks)


def like(state, size: int) -> int:
    return sum(np.size(leaf) // size for leaf in jax.tree.leaves(state) if np.shape(leaf)[-1:] == (size,))


def check_memory(cell: str, state, letters: dict) -> None:
    copies, _, of_x = cell.partition(", and ")
    assert like(state, N_Y) == value(copies, letters)
    assert not of_x or like(state, N_X) == int(of_x.removesuffix(" of x"))


@pytest.mark.slow
@pytest.mark.parametrize("name", IMPLICIT)
def test_implicit_methods(name):
    cells, (make, letters) = rows("methods.md")[name], IMPLICIT[name]
    for each in (make, *([UNLISTED[name]] if name in UNLISTED else [])):
        check(cells, each(PROBLEM), letters, each(PROBLEM).init(X0, Y0))
    check_memory(cells[4], make(PROBLEM).init(X0, Y0), letters)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_unrolled_and_first_order_methods(name):
    cells, (make, letters) = rows("methods-unrolled-and-first-order.md")[name], OTHERS[name]
    solver, meta = make(PROBLEM), "per task" in name
    data = bl.Batch(*ROWS) if meta else None
    state = solver.init(Y0 if meta else X0, Y0, data)
    check(cells, solver, letters, state, data, TASKS if meta else 1)
    if name[1:].startswith(IN_THE_STATE):
        check_memory(cells[4], state, letters)


@pytest.mark.slow
@pytest.mark.parametrize("name", STOCHASTIC)
def test_methods_for_small_batches(name):
    cells, (make, letters, count), case = (
        rows("methods-stochastic.md")[name],
        STOCHASTIC[name],
        PROBLEMS["trees"](float),
    )
    solver = make(case.problem, 1 / case.L)
    step, state = jax.jit(counted_step(solver)), solver.init(case.x0, case.y0, case.data)
    for _ in range(count):
        state, info, counts = step(state, case.data)
    drawn = {letter: int(info.metrics[of]) for letter, of in letters.items() if isinstance(of, str)}
    assert Counts(*map(int, counts)) == expected(cells, letters | drawn)


def test_a_trial_of_tuning_free_with_one_inner_variable():
    """A Newton direction is then one product, and one of them is enough: N = 1. C are the products of all solves."""
    problem = bl.Problem(
        inner=lambda x, y: (y - jnp.sum(x)) ** 2, outer=lambda x, y: (y - 1.0) ** 2 + jnp.sum(x**2)
    )
    cells, solver = rows("methods-unrolled-and-first-order.md")[TUNING_FREE], bl.tuning_free(problem)
    step = jax.jit(counted_step(solver))
    state, _, _ = step(solver.init(jnp.ones(N_X), jnp.zeros(())))
    state, _, _ = step(state)
    _, info, counts = step(state)
    solves = int(info.metrics["inner_steps"] + info.metrics["adjoint_steps"])
    passes = int(counts.cross_products) - 1
    assert passes >= 1
    assert Counts(*map(int, counts)) == expected(cells, {"P": passes, "N": 1, "C": solves})
    check_memory(cells[4], bl.tuning_free(PROBLEM).init(X0, Y0), {})


SEVERAL = {
    "`itd`, `forward_itd`, `rtho`, `bda`, `iaptt`, `pzobo`": {
        make: {}
        for make in (
            bl.itd,
            bl.solvers.forward_itd,
            bl.solvers.rtho,
            bl.solvers.bda,
            bl.solvers.iaptt,
            bl.solvers.pzobo,
        )
    },
    "`f2ba`, `acc_f2ba`, `f2sa_p`, `bome`, `v_pbgd`, `d_tfbo`": {
        bl.solvers.f2ba: dict(penalty=5.0),
        bl.solvers.acc_f2ba: dict(penalty=5.0, radius=1.0),
        bl.solvers.f2sa_p: dict(penalty=5.0),
        bl.solvers.bome: {},
        bl.solvers.v_pbgd: dict(penalty=5.0),
    },
}


def several(make, more):
    return lambda **how: make(PROBLEM, inner=A, outer=B, inner_steps=4, **more, **how)


DRAWS = {
    "`stocbio`": (
        lambda **how: bl.stocbio(PROBLEM, inner=A, adjoint=A, outer=B, inner_steps=4, products=3, **how),
        {"N": 4, "Q": 3},
    ),
    "`f2sa`": (lambda **how: bl.f2sa(PROBLEM, inner=A, outer=B, penalty=5.0, inner_steps=4, **how), {"T": 4}),
    "`soba`": (lambda **how: bl.soba(PROBLEM, inner=A, adjoint=A, outer=B, **how), {}),
    "`aid`": (lambda **how: bl.aid(PROBLEM, inner=A, adjoint=A, outer=B, inner_steps=4, **how), {"N": 4}),
    "`mrbo`, `sustain`": (
        lambda **how: bl.solvers.mrbo(PROBLEM, inner=A, adjoint=A, outer=B, products=4, **how),
        {"Q": 4},
    ),
    "`vrbo`": (
        lambda **how: bl.solvers.vrbo(PROBLEM, inner=A, adjoint=A, outer=B, inner_steps=2, products=3, **how),
        {"N": 2, "Q": 3},
    ),
    "`fsla`": (lambda **how: bl.solvers.fsla(PROBLEM, inner=A, adjoint=A, outer=B, **how), {}),
}


def test_batches_drawn():
    (table,) = (t for t in tables((ROOT / "docs/how-to/minibatches.md").read_text()) if t.measured)
    *own, others = table.rows
    assert [row[0] for row in own] == [*SEVERAL, *DRAWS]
    assert others == ("all others", "1", "")
    for name, told, default in own:
        makers = [(several(*each), {"N": 4}) for each in SEVERAL.get(name, {}).items()]
        for make, letters in makers or [DRAWS[name]]:
            independent = value(told.rpartition(": ")[2], letters)
            assert make(batches="independent").draws == independent > 1
            assert make(batches="shared").draws == (1 if name != "`vrbo`" else 3)
            assert make().draws == (independent if "independent" in default.split(";")[0] else 1)
    assert bl.solvers.d_tfbo(PROBLEM, inner_steps=4).draws == 4
    one = bl.aid(PROBLEM, inner=A, adjoint=A, outer=B)
    assert (one.draws, bl.aid(PROBLEM, inner=A, adjoint=A, outer=B, batches="independent").draws) == (1, 3)


def test_every_row_is_counted():
    assert rows("methods.md").keys() == IMPLICIT.keys()
    assert rows("methods-unrolled-and-first-order.md").keys() == OTHERS.keys() | {TUNING_FREE}
    assert rows("methods-stochastic.md").keys() == STOCHASTIC.keys()


ON_A_NETWORK = {
    "`bl.itd`": lambda problem: bl.itd(problem, inner=0.1, outer=0.1),
    "`bl.soba`": lambda problem: bl.soba(problem, inner=0.1, adjoint=0.1, outer=0.1),
    "`bl.aid`": lambda problem: bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1),
}


def operations_of_a_layer(step_of) -> float:
    """Return the operations of one more layer, as counted by the compiler: constant parts cancel."""
    rows, width = 64, 256
    real = lambda *shape: jax.ShapeDtypeStruct(shape, np.float32)

    def losses(y, batch):
        for w in y:
            batch = batch + jnp.tanh(batch @ w)
        return jnp.mean(batch**2, axis=1)

    inner = lambda x, y, batch: jnp.mean(jax.nn.sigmoid(x) * losses(y, batch))
    problem = bl.Problem(inner=inner, outer=lambda x, y, batch: jnp.mean(losses(y, batch)))
    data = bl.Batch(inner=real(rows, width), outer=real(rows, width))

    def total(layers: int) -> float:
        function, *arguments = step_of(problem, real(rows), [real(width, width)] * layers, data)
        return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]

    return (total(4) - total(3)) / (2 * rows * width**2)


@pytest.mark.slow
def test_large_models_says_how_many_forward_passes_a_step_takes():
    (table,) = (t for t in tables((ROOT / "docs/how-to/large-models.md").read_text()) if t.measured)
    told = {name: (state, float(work)) for name, state, work in table.rows}
    plain = lambda problem, x, y, data: (jax.grad(problem.inner, 1), x, y, data.inner)
    counted = {"a gradient step on g": operations_of_a_layer(plain)}
    for name, make in ON_A_NETWORK.items():

        def step(problem, x, y, data, make=make):
            solver = make(problem)
            return solver.step, jax.eval_shape(solver.init, x, y, data), data

        counted[name] = operations_of_a_layer(step)
    assert told.keys() == counted.keys()
    for name, (_, work) in told.items():
        assert counted[name] == pytest.approx(work, abs=0.2), name
