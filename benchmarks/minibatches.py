"""The bounds for minibatches against averages over many runs of the real solvers, on batches of one row.

    python benchmarks/minibatches.py [--record docs/measured]

1. Problems that are the worst for one term of the bound each, and random ones at their best step sizes: bound/mean.
2. Random problems, noise, starts and certified step sizes, with and without `v_bend`: the smallest bound/mean.
3. The same with a curved inner problem, g = ½y² + h log cosh y − b·y sin x.
4. The slope of the best bound in K, with and without `v_bend`.
"""

import argparse
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import record
from stochastic_problems import (
    PROBLEM,
    build,
    centerd,
    followed,
    inner_noise,
    orthogonal,
    phi_gradients,
    random,
    runs,
    shaken,
    slope,
    smooth,
)

import bilevel as bl
from bilevel.theory import Blocks, Noise, stochastic
from bilevel.theory.certificates.stochastic.bounds import candidates

jax.config.update("jax_enable_x64", True)

CERTIFICATES: dict[str, Callable[..., Any]] = {"AID": stochastic.aid, "SOBA": stochastic.soba}


def solver_of(name: str, problem: bl.Problem, *sizes: Any) -> bl.Solver:
    steps = dict(zip(("inner", "adjoint", "outer"), sizes, strict=True))
    return bl.aid(problem, **steps, batches="independent") if name == "AID" else bl.soba(problem, **steps)


def stacked(trees: list) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def bound_of(name: str, known: Any, noise: Noise, v_bend: float | None, sizes: tuple, steps: int) -> float:
    certificate = CERTIFICATES[name](known.blocks, noise, v_bend)
    return certificate.schedule_bound([np.full(steps, size) for size in sizes], *known.start)


def on_quadratics(name: str, problems: list, sizes: list, steps: int, seeds: int) -> list[tuple]:
    """(mean, its standard error, the noise along the runs) for each problem and its step sizes."""
    go = lambda case, sizes: runs(
        lambda *sizes: solver_of(name, PROBLEM, *sizes), case, sizes, steps, jnp.arange(seeds)
    )
    sizes_of_all = tuple(jnp.asarray(each) for each in zip(*sizes, strict=True))
    xs = jax.jit(jax.vmap(go))(stacked([case for case, _ in problems]), sizes_of_all)
    found = []
    for (case, known), each in zip(problems, xs, strict=True):
        by_run = np.sum(phi_gradients(case.data, each) ** 2, axis=-1).mean(axis=1)
        n = known.noise
        noise = Noise(inner_noise(case, each), n.adjoint, n.outer, n.hessian, n.cross)
        found.append((by_run.mean(), by_run.std() / np.sqrt(seeds), noise))
    return found


# 1. One term each


def terms(quick: bool, steps: int = 300, seeds: int = 256) -> Iterator[list]:
    cases = {
        r"$\Phi$ falls with constant slope, little noise: the gap": (slope(0.045 * steps), (1.0, 1.0, 0.5)),
        r"noise in $x$ alone, quadratic $\Phi$: $cK\sigma_\omega^2$": (shaken(), (1.0, 1.0, 0.45)),
        r"$y^*$ at rest, $x$ follows the noise of $y$: $\nu$": (followed(), (0.05, 0.5, 0.45)),
    }
    if not quick:
        cases |= {
            "a random problem, little noise, best step sizes": (random(1, level=0.02), None),
            "another, more noise": (random(0), None),
            r"another, noise in $\nabla^2_{yy}g$ and $\nabla^2_{xy}g$ too": (random(1, curved=0.2), None),
        }
    problems, ratios, errors = [problem for problem, _ in cases.values()], [], []
    for name, make in CERTIFICATES.items():
        sizes = [
            given or make(known.blocks, known.noise, known.v_bend).step_sizes(steps, *known.start)
            for (_, known), given in cases.values()
        ]
        found = on_quadratics(name, problems, sizes, steps, seeds)
        ratios.append(
            [
                bound_of(name, known, noise, known.v_bend, size, steps) / mean
                for (_, known), (mean, _, noise), size in zip(problems, found, sizes, strict=True)
            ]
        )
        errors.append([error / mean for mean, error, _ in found])
    for case, each, error in zip(cases, zip(*ratios, strict=True), np.max(errors, axis=0), strict=True):
        yield [case, *(f"{ratio:.2f}" for ratio in each), f"{100 * error:.1f} %"]


# 2. Random problems


def wild(seed: int) -> tuple[Any, np.ndarray]:
    """A problem, and powers of ten for its step sizes, as shares of the largest."""
    rng, n = np.random.default_rng(seed), 2
    turn = orthogonal(rng, n)
    H = turn * np.array([1.0, 10 ** rng.uniform(0, 1.5)]) @ turn.T if rng.random() < 0.7 else np.eye(n)
    B = orthogonal(rng, n) * (10 ** rng.uniform(-2, 0.3) * np.array([1, rng.random()])) @ orthogonal(rng, n)
    U = orthogonal(rng, 2 * n) if rng.random() < 0.6 else np.eye(2 * n)
    w = rng.uniform(0, 1, 2 * n) * (rng.random(2 * n) < 0.6) + 1e-3
    b, delta = rng.normal(size=2 * n) * rng.choice([0.01, 1]), 10 ** rng.uniform(-1, 1.5)
    noise = 10 ** rng.uniform(-2.5, 0.5, 3) * (rng.random(3) < 0.7)
    curved = 10 ** rng.uniform(-2, -0.3) * (rng.random() < 0.4)
    x0, y_off = rng.normal(size=n) * rng.choice([0.01, 1, 5]), rng.normal(size=n) * rng.choice([0, 0, 1])
    problem = build(rng, H, B, 0.3 * rng.normal(size=n), U, w, b, delta, tuple(noise), curved, x0, y_off)
    return problem, rng.uniform(-1.5, 0, 3) * np.array([1, 1, 0.7])


def random_problems(name: str, count: int, steps: int = 200, seeds: int = 128) -> tuple[list[float], int]:
    """bound/mean, with and without `v_bend`, and the number of means above a bound by three standard errors."""
    make, drawn = CERTIFICATES[name], [wild(seed) for seed in range(count)]
    sizes = [sizes_of(make(k.blocks, k.noise, k.v_bend), shares) for (_, k), shares in drawn]
    problems, ratios, above = [problem for problem, _ in drawn], [], 0
    for i in range(0, count, 20):  # as many runs as fit in memory
        part = slice(i, i + 20)
        found = on_quadratics(name, problems[part], sizes[part], steps, seeds)
        for (_, known), (mean, error, noise), size in zip(problems[part], found, sizes[part], strict=True):
            both = [bound_of(name, known, noise, bend, size, steps) for bend in (known.v_bend, None)]
            ratios.append([bound / mean for bound in both])
            above += min(both) < mean - 3 * error
    return [min(each) for each in ratios if np.isfinite(max(each))], above


def sizes_of(certificate: Any, exponents: np.ndarray) -> tuple[float, float, float]:
    at = candidates(certificate._method, exponents)
    return float(at.alpha), float(at.eta), float(at.beta)


# 3. Curved inner problems

ROWS = 16
CURVED = bl.Problem(
    inner=lambda x, y, rows: jnp.sum(
        0.5 * y * y + rows[1][0] * jnp.logaddexp(y, -y) - rows[2][0] * jnp.sin(x) * y + jnp.mean(rows[0]) * y
    ),
    outer=lambda x, y, rows: (
        smooth(x, y, *(a[0] for a in rows[:4])) + jnp.mean(rows[4], axis=0) @ jnp.concatenate([x, y])
    ),
)


def hypergradient(data: bl.Batch, x: jax.Array) -> tuple:
    """y*, v*, Φ and ∇Φ, with y* by Newton's method."""
    c, h, b = jnp.mean(data.inner[0]), data.inner[1][0], data.inner[2][0]
    step = lambda y, _: (
        y - (y + h * jnp.tanh(y) - b * jnp.sin(x) + c) / (1 + h * (1 - jnp.tanh(y) ** 2)),
        None,
    )
    y = jax.lax.scan(step, jnp.zeros_like(x), length=12)[0]
    f = lambda x, y: smooth(x, y, *(a[0] for a in data.outer[:4]))
    f_x, f_y = jax.grad(f, (0, 1))(x, y)
    v = f_y / (1 + h * (1 - jnp.tanh(y) ** 2))
    return y, v, f(x, y), f_x + b * jnp.cos(x) * v


def curved(seed: int) -> tuple:
    rng = np.random.default_rng(seed)
    h, b, delta = 10 ** rng.uniform(-1, 0.7), 10 ** rng.uniform(-1, 0.5), 10 ** rng.uniform(-1, 0.5)
    U, w, at = orthogonal(rng, 2), rng.uniform(0.05, 1, 2), rng.normal(size=2)
    level = 10 ** rng.uniform(-2, 0.5, 3) * (rng.random(3) < 0.8) + 1e-12
    tile = lambda a: jnp.asarray(np.broadcast_to(a, (ROWS, *np.shape(a))))
    c = centerd(rng, level[0], 1)[:, 0] + 0.1
    z = np.concatenate([centerd(rng, level[2], 1), centerd(rng, level[1], 1)], axis=1)
    data = bl.Batch(
        inner=(jnp.asarray(c), tile(h), tile(b)),
        outer=(tile(U), tile(w), tile(at), tile(delta), jnp.asarray(z)),
    )
    f_xx, f_yy = float(U[:, 0] ** 2 @ w), float(U[:, 1] ** 2 @ w)
    k = Blocks(
        1.0,
        1 + h,
        b,
        f_xx,
        np.sqrt(f_xx * f_yy),
        f_yy,
        delta * np.linalg.norm(w),
        rho_xxy=b,
        rho_yyy=0.77 * h,
    )  # |(log cosh)'''| ≤ 4/3√3
    x0 = jnp.asarray(rng.normal(size=1))
    y, v, phi, _ = hypergradient(data, x0)
    y0 = y + rng.normal() * (rng.random() < 0.5)
    start = float(phi), float(jnp.abs(y0 - y)[0]), float(jnp.abs(v)[0])
    return (data, x0, y0), k, Noise(*level), start, rng.uniform(-1.5, 0, 3) * np.array([1, 1, 0.5])


def curved_problems(name: str, count: int, steps: int = 200, seeds: int = 256) -> tuple[list[float], int]:
    """bound/mean, and the number of means above the bound by three standard errors."""
    make, drawn = CERTIFICATES[name], [curved(seed) for seed in range(count)]
    sizes = [sizes_of(make(k, noise), shares) for _, k, noise, _, shares in drawn]

    def mean(data, x0, y0, sizes, seed):
        solver = solver_of(name, CURVED, *sizes)
        record = lambda state, info: state.x
        stream = bl.iid(data, 1, seed=seed)
        xs = bl.scan(solver, solver.init(x0, y0, data), stream, steps=steps - 1, record=record)[1]
        at = jnp.concatenate([x0[None], xs])
        return jnp.mean(jax.vmap(lambda x: hypergradient(data, x)[3] ** 2)(at))

    over_seeds = jax.vmap(mean, (None, None, None, None, 0))
    sizes_of_all = tuple(jnp.asarray(each) for each in zip(*sizes, strict=True))
    found = jax.jit(jax.vmap(over_seeds, (0, 0, 0, 0, None)))(
        *stacked([case for case, *_ in drawn]), sizes_of_all, jnp.arange(seeds)
    )
    bounds = np.array(
        [
            make(k, noise).schedule_bound([np.full(steps, s) for s in size], *start)
            for (_, k, noise, start, _), size in zip(drawn, sizes, strict=True)
        ]
    )
    means, errors = np.mean(found, axis=1), np.std(found, axis=1) / np.sqrt(seeds)
    return list(bounds / means), int(np.sum(bounds < means - 3 * errors))


def many_problems(quick: bool) -> Iterator[list]:
    """Ends the program if a bound is exceeded."""
    kinds = {"quadratic $g$": (random_problems, 200), "curved $g$": (curved_problems, 60)}
    for kind, name in list(product(kinds, CERTIFICATES))[:: 3 if quick else 1]:
        judge, count = kinds[kind]
        ratios, above = judge(name, 4, steps=60, seeds=32) if quick else judge(name, count)
        yield [f"{kind}, {name}", len(ratios), f"{min(ratios):.2f}", f"{np.median(ratios):.1f}", above]
        if above:
            raise SystemExit(f"{above} means of {name} are above their bounds")


# 4. Orders


def orders(quick: bool) -> Iterator[list]:
    k = Blocks(0.5, 2.0, 0.7, 1.0, 0.6, 0.8, 1.3, 0.2, 0.3, 0.4)
    noise = Noise(0.3, 0.2, 0.4, hessian=0.2, cross=0.15)
    for power in (4, 6, 9, 10)[: 1 if quick else None]:
        bounds = (
            [stochastic.aid(k, noise, bend).bound(10.0 ** (power + more), 1.0) for more in (0, 1)]
            for bend in (2.0, None)
        )
        yield [f"$10^{{{power}}}$", *(f"{np.log10(after / before):.3f}" for before, after in bounds)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    options = parser.parse_args()
    quick, folder = options.quick, options.record
    columns = ["case", *CERTIFICATES, "standard error"]
    record.table("minibatches-terms", columns, terms(quick), folder, repeatable=True)
    columns = ["problems", "certified", "smallest bound/mean", "median", "above"]
    record.table("minibatches-random", columns, many_problems(quick), folder)
    record.table(
        "minibatches-orders", ["$K$", "with `v_bend`", "without"], orders(quick), folder, repeatable=True
    )


if __name__ == "__main__":
    main()
