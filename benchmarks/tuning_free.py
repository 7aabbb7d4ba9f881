"""Methods without step sizes, and AID with the best of a grid of them, on problems in many units and shapes.

    python benchmarks/tuning_free.py [--only log-ridges,quartic] [--budget 20000]

Every run may spend the same number of oracle calls (partial gradients, Hessian and cross products). A problem is solved
when ‖∇Φ‖ has fallen to a thousandth of its start; on minibatches, when its median over the last tenth of the run is a
twentieth. ∇Φ is computed densely, at the inner solution that Newton's method reaches from the run's own y; with a
projection it is the gradient mapping. AID's grid is 5 × 5: α = η over five decades around 1/L and β over five around
|Φ|/‖∇Φ‖² at the start; each of the 25 runs has the whole budget, and the best one counts. `advise` pays nothing for
its advice.
"""

import argparse
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import record
from jax import lax

import bilevel as bl
from bilevel.counting import counted_step

jax.config.update("jax_enable_x64", True)
softplus = jax.nn.softplus
UNITS = [{}] + [{name: unit} for name in "fgxy" for unit in (1e4, 1e-4)]


@dataclass
class Family:
    """Problems that differ in their data alone: `cases` are (label, data, x0, y0), data = (arrays, units)."""

    name: str
    f: Callable
    g: Callable
    cases: list
    project: Callable | None = None
    batch: int | None = None

    @property
    def problem(self) -> bl.Problem:
        if self.batch:
            return bl.Problem(inner=self.g, outer=self.f)
        scaled = lambda objective, name: (
            lambda x, y, d: d[1][name] * objective(x / d[1]["x"], y / d[1]["y"], d[0])
        )
        return bl.Problem(inner=scaled(self.g, "g"), outer=scaled(self.f, "f"))


def unit(units: dict) -> str:
    return ", ".join(f"{name} × {unit:g}" for name, unit in units.items()) or "as it is"


def case(label: str, inner: Any, outer: Any, x0: Any, y0: Any, **units: float) -> tuple:
    units = {name: jnp.asarray(units.get(name, 1.0)) for name in "fgxy"}
    data = bl.Batch(inner=(inner, units), outer=(outer, units))
    return label, data, units["x"] * x0, units["y"] * y0


def examples(seed: int, rows: int = 60, columns: int = 5) -> tuple:
    """Signed features: training and validation labels come from different weight vectors."""
    rng = np.random.default_rng(seed)
    A, B, w, z = (rng.normal(size=s) for s in ((rows, columns), (rows, columns), columns, columns))
    sign = lambda a, w: np.sign(a @ w + 0.1 * rng.normal(size=rows))
    return jnp.asarray(A * sign(A, w)[:, None]), jnp.asarray(B * sign(B, z)[:, None])


def families() -> list[Family]:
    logistic = lambda y, a: jnp.mean(softplus(-a @ y))
    ridged = lambda x, y, a: logistic(y, a) + 0.5 * jnp.sum(jnp.exp(x) * y**2)
    validation = lambda x, y, a: logistic(y, a) + 1e-3 * jnp.sum(x**2)
    start, blank = jnp.full(5, -3.0), jnp.zeros(5)
    found = [
        Family(
            "log-ridges from x = −3; six seeds, f, g, x, y × 10^±4",
            validation,
            ridged,
            [case(f"seed {s}", *examples(s), start, blank) for s in range(6)]
            + [case(unit(u), *examples(0), start, blank, **u) for u in UNITS[1:]],
        )
    ]

    def counts(seed):
        rng = np.random.default_rng(seed)
        A, B, w, z = (
            rng.normal(size=(60, 5)),
            rng.normal(size=(60, 5)),
            rng.normal(size=5),
            rng.normal(size=5),
        )
        return tuple(
            (jnp.asarray(a), jnp.asarray(1.0 * rng.poisson(np.exp(a @ (c / 2))))) for a, c in ((A, w), (B, z))
        )

    poisson = lambda y, d: jnp.mean(jnp.exp(d[0] @ y) - d[1] * (d[0] @ y))
    found.append(
        Family(
            "Poisson log-ridges",
            lambda x, y, d: poisson(y, d) + 1e-3 * jnp.sum(x**2),
            lambda x, y, d: poisson(y, d) + 0.5 * jnp.sum(jnp.exp(x) * y**2),
            [case(f"seed {s}", *counts(s), start, blank) for s in range(3)],
        )
    )

    rng = np.random.default_rng(0)
    A, B, c = (jnp.asarray(rng.normal(size=size)) for size in ((20, 4), (4, 3), 4))
    found.append(
        Family(
            "coupled through sine and tanh; f, g, x, y × 10^±4",
            lambda x, y, d: jnp.sum(jnp.logaddexp(y - d[2], d[2] - y)) + 0.05 * jnp.sum(x**2),
            lambda x, y, d: (
                jnp.mean(softplus(d[0] @ y))
                + 0.5 * jnp.sum((1.5 + jnp.sin(d[1] @ x)) * y**2)
                - y @ jnp.tanh(d[1] @ x)
            ),
            [case(unit(u), (A, B, c), (A, B, c), jnp.ones(3), jnp.zeros(4), **u) for u in UNITS],
        )
    )

    def quadratic(kappa):
        rng = np.random.default_rng(0)
        Q, _ = np.linalg.qr(rng.normal(size=(12, 12)))
        H = Q @ np.diag(np.geomspace(1 / kappa, 1, 12)) @ Q.T
        return tuple(map(jnp.asarray, (H, rng.normal(size=(12, 6)) / 2, rng.normal(size=12))))

    zeros = jnp.zeros(6), jnp.zeros(12)
    found.append(
        Family(
            "quadratics that feed back, κ = 1 … 10⁴; κ = 30 in other units",
            lambda x, y, d: 0.5 * jnp.sum((y - d[2]) ** 2) + 0.05 * jnp.sum(x**2),
            lambda x, y, d: 0.5 * y @ d[0] @ y - y @ (d[1] @ x),
            [case(f"κ = {k}", quadratic(k), quadratic(k), *zeros) for k in (1, 10, 100, 1000, 10_000)]
            + [case(f"κ = 30, {unit(u)}", quadratic(30), quadratic(30), *zeros, **u) for u in UNITS[1:]],
        )
    )

    near = lambda x, y, d: 0.5 * jnp.sum((y - d[0]) ** 2) + 0.05 * jnp.sum(x**2)
    normal = lambda seed, *size: jnp.asarray(np.random.default_rng(seed).normal(size=size))
    found.append(
        Family(
            "quartic inner problem",
            near,
            lambda x, y, d: 0.25 * jnp.sum(y**4) + 0.005 * jnp.sum(y**2) - x @ y,
            [
                case(f"seed {s}", (normal(s, 4),), (normal(s, 4),), jnp.ones(4), jnp.zeros(4))
                for s in range(3)
            ],
        )
    )

    def wells(seed):
        return jnp.sign(normal(seed, 6)) * 1.2, normal(seed + 10, 6, 3)

    found.append(
        Family(
            "double wells",
            near,
            lambda x, y, d: jnp.sum(0.25 * y**4 - 0.5 * y**2 - 0.3 * y * jnp.tanh(d[1] @ x)),
            [case(f"seed {s}", wells(s), wells(s), jnp.ones(3), jnp.full(6, 0.1)) for s in range(2)],
        )
    )
    found.append(
        Family(
            "double wells, of which some vanish",
            near,
            lambda x, y, d: jnp.sum(0.25 * y**4 - 0.5 * y**2 - 0.3 * y * (d[1] @ x)),
            [case(f"seed {s}", wells(s), wells(s), jnp.ones(3), jnp.full(6, 0.1)) for s in range(2)],
        )
    )

    grouped = lambda x, y, a: (
        jax.nn.softmax(x) @ jnp.mean(softplus(-a @ y).reshape(6, 10), 1) + 0.01 * jnp.sum(y**2)
    )
    found.append(
        Family(
            "softmax weights of groups of examples",
            validation,
            grouped,
            [case(f"seed {s}", *examples(s), jnp.zeros(6), blank) for s in range(2)],
        )
    )
    found.append(
        Family(
            "ridges in a box, by projection",
            lambda x, y, a: logistic(y, a),
            lambda x, y, a: logistic(y, a) + 0.5 * jnp.sum(x * y**2),
            [case(f"seed {s}", *examples(s), jnp.full(5, 0.5), blank) for s in range(2)],
            project=lambda x: jnp.clip(x, 0.01, 1.0),
        )
    )
    found.append(
        Family(
            "ridges in (0, 1), by a sigmoid",
            validation,
            lambda x, y, a: logistic(y, a) + 0.5 * jnp.sum(jax.nn.sigmoid(x) * y**2),
            [case(f"seed {s}", *examples(s), start, blank) for s in range(2)],
        )
    )
    sampled = [(f"seed {s}", bl.Batch(*examples(s)), start, blank) for s in range(4)]
    found.append(
        Family(
            "log-ridges, minibatches of 20 of 60 (to 1/20, in the median)",
            validation,
            ridged,
            sampled,
            batch=20,
        )
    )
    return found


def measure(family: Family, problem: bl.Problem) -> Callable:
    """(x, y, data, s) ↦ ‖∇Φ(x)‖, or the gradient mapping's of step s, and Φ(x); y is where to look for y*(x)."""

    def solved(x, y, data):
        def newton(y, _):
            values, vectors = jnp.linalg.eigh(jax.hessian(problem.g, 1)(x, y, data))
            s = vectors @ ((vectors.T @ jax.grad(problem.g, 1)(x, y, data)) / jnp.abs(values))
            trials = y - 4.0 ** -jnp.arange(12.0)[:, None] * s
            values = jax.vmap(lambda y: problem.g(x, y, data))(trials)
            return trials[jnp.nanargmin(values)], None

        return lax.scan(newton, y, length=15)[0]

    def at(x, y, data, s):
        y = solved(x, y, data)
        v = jnp.linalg.solve(jax.hessian(problem.g, 1)(x, y, data), jax.grad(problem.f, 1)(x, y, data))
        cross = jax.jacobian(jax.grad(problem.g, 1), 0)(x, y, data)
        h = jax.grad(problem.f, 0)(x, y, data) - cross.T @ v
        mapped = h if family.project is None else (x - family.project(x - s * h)) / s
        return jnp.linalg.norm(mapped), problem.f(x, y, data), jnp.linalg.norm(h)

    return at


def race(family: Family, budget: int, methods: Collection[str]):
    """For every case, by method: the calls at which it was solved, or `None`."""
    problem = family.problem
    at = measure(family, problem)
    keep = (lambda beta: bl.projected(beta, family.project)) if family.project else (lambda beta: beta)

    def batches(data, steps):  # the same draws for every method
        if not family.batch:
            return None
        rows = jax.random.randint(jax.random.key(0), (2, steps, family.batch), 0, data.inner.shape[0])
        return bl.Batch(inner=data.inner[rows[0]], outer=data.outer[rows[1]])

    def trail(solver, x0, y0, data, steps, every):
        step, drawn = counted_step(solver), batches(data, steps * every)

        def one(carry, batch):
            state, calls = carry
            state, _, counts = step(state, data if drawn is None else batch)
            return (state, calls + sum(counts)), None

        def some(carry, drawn):
            (state, calls), _ = lax.scan(one, carry, drawn, length=every)
            return (state, calls), (state.x, state.y, calls)

        begin = data if drawn is None else jax.tree.map(lambda a: a[0], drawn)
        chunks = jax.tree.map(lambda a: a.reshape(steps, every, *a.shape[1:]), drawn)
        return lax.scan(some, (solver.init(x0, y0, begin), 0), chunks, length=steps)[1]

    def judged(xs, ys, calls, data, scale, first):
        sizes, _, _ = jax.vmap(lambda x, y: at(x, y, data, scale))(xs, ys)
        within, relative = calls <= budget, sizes / first
        if family.batch:
            last = within & (calls > 0.9 * budget)
            good = jnp.nanmedian(jnp.where(last, relative, jnp.nan)) <= 0.05
            return jnp.where(good, calls[-1], -1), relative[-1]
        hit = within & (relative <= 1e-3)
        index = jnp.argmax(hit)
        best = jnp.nanmin(jnp.where(within, relative, jnp.nan))
        return jnp.where(jnp.any(hit), calls[index], -1), best

    def compiled(make, per_step, every):
        steps = budget // per_step // every + 1

        @jax.jit
        def go(numbers, x0, y0, data, scale, first):
            run = lambda numbers: judged(
                *trail(make(*numbers), x0, y0, data, steps, every), data, scale, first
            )
            return jax.vmap(run)(numbers) if numbers else run(())

        return go

    tuning_free = lambda: bl.tuning_free(problem, project=family.project)
    aid = lambda alpha, beta: bl.aid(problem, inner=alpha, adjoint=alpha, outer=keep(beta))
    programs = {
        "tuning_free": compiled(tuning_free, 22, 1),
        "s_tfbo": compiled(lambda: bl.solvers.s_tfbo(problem), 5, 40),
        "d_tfbo": compiled(lambda: bl.solvers.d_tfbo(problem), 23, 10),
        "aid": compiled(aid, 5, 40),
        "advise": compiled(lambda a, e, b: bl.aid(problem, inner=a, adjoint=e, outer=keep(b)), 5, 40),
    }
    has_none = ("s_tfbo", "d_tfbo") if family.project else ()
    programs = {name: go for name, go in programs.items() if name in methods and name not in has_none}
    look = jax.jit(lambda x, y, data, s: at(x, y, data, s))
    largest = jax.jit(lambda x, y, data: jnp.linalg.norm(jax.hessian(problem.g, 1)(x, y, data), 2))
    for label, data, x0, y0 in family.cases:
        _, value, slope = look(x0, y0, data, 1.0)
        scale = abs(value) / slope**2
        first, _, _ = look(x0, y0, data, scale)
        decades = 10.0 ** jnp.arange(-2.0, 3.0)
        alphas, betas = jnp.meshgrid(decades / 10 / largest(x0, y0, data), decades / 10 * scale)
        numbers = {"aid": (alphas.ravel(), betas.ravel())}
        row = {}
        if "advise" in programs:
            try:
                advice = bl.advise(problem, x0, y0, data).practical
                numbers["advise"] = tuple(jnp.asarray([float(n)]) for n in advice)
            except ValueError:  # it refuses to advise, and says why
                row["advise"] = None, np.nan
        for name, go in programs.items():
            if name in row:
                continue
            calls, best = (np.atleast_1d(a) for a in go(numbers.get(name, ()), x0, y0, data, scale, first))
            row[name] = (int(calls[calls > 0].min()) if (calls > 0).any() else None, float(np.nanmin(best)))
        yield label, row


METHODS = {
    "tuning_free": "`tuning_free`",
    "aid": "AID, best of 25",
    "advise": "AID, `advise`",
    "s_tfbo": "`s_tfbo`",
    "d_tfbo": "`d_tfbo`",
}


def cell(row: dict, name: str) -> str:
    """Of one problem: the calls at which it was solved, or how far ‖∇Φ‖ has fallen."""
    if name not in row:
        return "no projection"
    calls, left = row[name]
    return f"{calls:,}" if calls else f"not: {left:.1e}"


def summary(rows: list[dict], name: str, sampled: bool) -> str:
    """Of a family: how many were solved, and the median of the calls. On minibatches all of the budget is spent."""
    if not any(name in row for row in rows):
        return "has none"
    calls = [row[name][0] for row in rows if row[name][0]]
    return f"{len(calls)}, {int(np.median(calls)):,}" if calls and not sampled else str(len(calls))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    record.options(parser)
    parser.add_argument("--only", help="families whose names contain one of these, separated by commas")
    parser.add_argument("--budget", type=int, default=20_000, help="oracle calls of every run")
    given = parser.parse_args()
    only = "quadratics" if given.quick else given.only
    table, every, solved = [], [], dict.fromkeys(METHODS, 0)
    for family in families():
        if only and not any(part in family.name for part in only.split(",")):
            continue
        if given.quick:
            family.cases = family.cases[:1]
        rows = []
        for label, row in race(family, *((40, ["aid"]) if given.quick else (given.budget, METHODS))):
            every.append([family.name, [label, *(cell(row, name) for name in METHODS)]])
            print(*every[-1], file=sys.stderr, flush=True)
            rows.append(row)
        for name in METHODS:
            solved[name] += sum(bool(row[name][0]) for row in rows if name in row)
        sampled = family.batch is not None
        table.append([family.name, len(rows), *(summary(rows, name, sampled) for name in METHODS)])
    table.append(["**solved**", *(f"**{n}**" for n in (sum(row[1] for row in table), *solved.values()))])
    record.table("tuning-free", ("problems", "number", *METHODS.values()), table, given.record)
    quadratics = [cells for name, cells in every if name.startswith("quadratics")]
    if quadratics:
        columns = ("quadratics", *METHODS.values())
        record.table("tuning-free-quadratics", columns, quadratics, given.record)


if __name__ == "__main__":
    main()
