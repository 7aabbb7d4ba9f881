"""Momentum on y and v: which outer steps are stable and certified, what they are worth, and where that ends.

    python benchmarks/momentum.py [--most 40000] [--record docs/measured]

1. The first unstable β on quadratics in one dimension, from the loop's frequency response and confirmed by runs of the
   real solver 3 % below and above it, and over the certified β.
2. Steps until ‖∇Φ‖ stays below 10⁻³ of its start, at 0.9 of the largest certified β and at the best of a grid. "weak":
   one outer variable that acts on the weakest mode alone. "random": `bl.problems.random_quadratic` with one outer and
   three inner variables, whose f is not quadratic; the median over five seeds.
3. A smooth g whose curvature is L for y > 0 and μ for y < 0, for which the constants' other assumptions hold.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import record

import bilevel as bl
from bilevel.theory import Blocks, Certificate, Constants, momentum, star
from bilevel.theory.certificates.momentum_gains import MomentumLoop

jax.config.update("jax_enable_x64", True)

KAPPAS = (10.0, 30.0, 100.0, 300.0, 1000.0)
OMEGA = np.geomspace(1e-4, np.pi, 40_001)
HESSIANS = list(itertools.product(np.linspace(-1, 1, 5), repeat=3))  # f_xx, f_xy, f_yy


def damped_less(k: Blocks) -> Certificate:
    return momentum.aid(k, m=1 - np.sqrt(1.5 / k.kappa))


METHODS: dict[str, Callable[[Any], Certificate]] = {
    r"plain, $\frac2{L+\mu}$": star.aid,
    "Nesterov": momentum.aid,
    "damped less": damped_less,
    "heavy ball": momentum.heavy_ball,
}
THREE = [name for name in METHODS if name != "damped less"]


def rule_of(c: Certificate) -> tuple[float, float, bool]:
    return float(c.alpha), float(getattr(c, "m", 0.0)), getattr(c, "nesterov", False)


def solver_of(problem: bl.Problem, c: Certificate, beta: Any) -> bl.Solver:
    alpha, m, nesterov = rule_of(c)
    rule = optax.sgd(alpha, momentum=m, nesterov=nesterov) if m else alpha
    return bl.aid(problem, inner=rule, adjoint=rule, outer=beta)


# 1. Stability

LINE = bl.Problem(
    outer=lambda x, y, f: 0.5 * (f[0] * x * x + f[2] * y * y) + f[1] * x * y,
    inner=lambda x, y, g: 0.5 * g[0] * y * y - g[1] * x * y,
)


def first_unstable(c: Certificate, mu: float, f: tuple) -> float:
    """The smallest β with an eigenvalue z on the unit circle, (1 − z)/(f_xx + 2f_xy·sF + f_yy·s²F²), F = y/y*."""
    alpha, m, nesterov = rule_of(c)
    z = np.exp(1j * OMEGA)
    n, slope = (1 + m - m / z if nesterov else 1.0), 1 / mu
    F = alpha * mu * n / ((1 - 1 / z) * (1 - m / z) + alpha * mu * n / z)
    with np.errstate(divide="ignore", invalid="ignore"):
        beta = (1 - z) / (f[0] + 2 * f[1] * slope * F + f[2] * (slope * F) ** 2)
    i = np.nonzero(np.sign(beta.imag[1:]) != np.sign(beta.imag[:-1]))[0]
    i = i[np.isfinite(beta[i]) & np.isfinite(beta[i + 1])]
    share = beta.imag[i] / (beta.imag[i] - beta.imag[i + 1])
    crossings = (1 - share) * beta.real[i] + share * beta.real[i + 1]
    # z = −1 is a crossing as well: everything is real there
    return min([b for b in [*crossings, beta.real[-1]] if b > 0], default=np.inf)


def grows(c: Certificate, mu: float, f: tuple, betas: np.ndarray, steps: int = 60_000) -> list[bool]:
    def lengths(beta):
        solver, data = solver_of(LINE, c, beta), bl.Batch(jnp.array([mu, 1.0]), jnp.array(f))
        state = solver.init(jnp.ones(()), jnp.ones(()) / mu, data)
        half = bl.scan(solver, state, data, steps=steps // 2)[0]
        amplitude = lambda state: jnp.abs(state.x) + jnp.abs(state.y) * mu + jnp.abs(state.v) * mu**2
        record = lambda state, info: amplitude(state)
        early = bl.scan(solver, state, data, steps=2_000, record=record)[1]
        late = bl.scan(solver, half, data, steps=2_000, record=record)[1]
        return jnp.max(late) / jnp.max(early)

    return [bool(grown > 1) for grown in jax.jit(jax.vmap(lengths))(betas)]


def stability(kappas: Sequence[float]) -> Iterator[list]:
    for kappa in kappas:
        k = Constants(1 / kappa, 1.0, 1.0, 0.0).blocks
        convex = [f for f in HESSIANS if f[0] + 2 * f[1] * kappa + f[2] * kappa**2 > 0]
        cells, grown = [], []
        for c in (make(k) for make in METHODS.values()):
            beta, f = min((first_unstable(c, k.mu, f), f) for f in convex)
            cells.append(f"{beta:.1e} ({beta / c.beta_max:.1f} ×)".replace("e-0", "e-"))
            grown.append(grows(c, k.mu, f, np.array([0.97, 1.03]) * beta))
        yield [f"{kappa:g}", *cells, ", ".join(said(each) for each in zip(*grown, strict=True))]


def said(grown: Sequence[bool]) -> str:
    """What all runs do, or how many do what."""
    return {0: "settle", len(grown): "grow"}.get(sum(grown), f"{sum(grown)} of {len(grown)} grow")


# 2. Steps


def settled(slopes: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The steps after which ‖∇Φ‖ stays below 10⁻³ of its start; infinite if it does not within the run."""
    above = ~(slopes <= 1e-3 * first)
    last = slopes.shape[-1] - np.argmax(above[..., ::-1], axis=-1)
    return np.where(above[..., -1], np.inf, np.where(above.any(axis=-1), last + 1.0, 0.0))


def weak(kappa: float):
    """(Batch, x₀, y*, ∇Φ) of f = ½(y₁ − 1)², g = ½yᵀdiag(μ, L)y − xy₁."""
    data = bl.Batch(inner=jnp.array([1 / kappa, 1.0]), outer=jnp.ones(2))
    problem = bl.Problem(
        outer=lambda x, y, one: 0.5 * (y[0] - one[0]) ** 2, inner=lambda x, y, h: 0.5 * h @ (y * y) - x * y[0]
    )
    star_of = lambda x, data: jnp.stack([x, 0 * x]) / data.inner
    return problem, data, jnp.zeros(()), star_of


def random(kappa: float):
    drawn = [bl.problems.random_quadratic(seed, mu=1 / kappa, kappa=kappa, m=1, n=3) for seed in range(5)]
    data = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(each.data for each in drawn))
    star_of = lambda x, data: -jnp.linalg.solve(data.inner.H, data.inner.B.T @ x + data.inner.c)
    return drawn[0].problem, data, jnp.ones(1), star_of


def steps_to(case, c: Certificate, betas: np.ndarray, most: int, several: bool) -> np.ndarray:
    problem, data, x0, star_of = case

    def slopes(beta, data):
        phi = lambda x: problem.f(x, star_of(x, data), data)
        slope = lambda x: jnp.sqrt(jnp.sum(jax.grad(phi)(x) ** 2))
        solver = solver_of(problem, c, beta)
        state = solver.init(x0, star_of(x0, data), data)
        return bl.scan(solver, state, data, steps=most, record=lambda state, info: slope(state.x))[1], slope(
            x0
        )

    over_beta = jax.vmap(slopes, (0, None))
    found, first = jax.jit(jax.vmap(over_beta, (None, 0)) if several else over_beta)(jnp.asarray(betas), data)
    return settled(np.asarray(found), np.asarray(first)[..., None])


def speed(cases: Sequence[tuple[float, Callable]], most: int) -> Iterator[list]:
    shares = np.concatenate([[0.9], 2.0 ** np.arange(-2, 9, 0.5)])
    shown = lambda steps: f"{np.median(steps):.0f}" if np.isfinite(np.median(steps)) else f"> {most}"
    for kappa, make_case in cases:
        name = make_case.__name__
        certificates = [METHODS[rule](Constants(1 / kappa, 1.0, 1.0, 0.0).blocks) for rule in THREE]
        taken = [
            np.atleast_2d(steps_to(make_case(kappa), c, shares * c.beta_max, most, name == "random"))
            for c in certificates
        ]
        yield [f"{kappa:g}", f"{name}, certified", *(shown(each[:, 0]) for each in taken)]
        yield [f"{kappa:g}", f"{name}, best", *(shown(each.min(axis=1)) for each in taken)]


# 3. Where it ends


def half_parabola(
    c: Certificate, mu: float, width: float = 0.05, steps: int = 400
) -> tuple[float, np.ndarray]:
    """(the largest run/bound, ŷ) for g = ½μy² + ½(L − μ)max(y, 0)², smoothed over `width`, from y₀ = 1.

    f = xy + ℓx with the worst ℓ. Then ∇²_xy g = 0, Φ = ℓx, and e_k = ŷ_k.
    """
    beta, K = 1e-6, np.arange(1, steps + 1)
    ramp = lambda y: jnp.where(
        y > width, 0.5 * (y - width / 2) ** 2 + width**2 / 24, jnp.where(y > 0, y**3 / (6 * width), 0.0)
    )
    problem = bl.Problem(
        outer=lambda x, y, ell: x * y + ell * x, inner=lambda x, y: 0.5 * mu * y**2 + (1 - mu) * ramp(y)
    )

    def run(ell):
        solver = solver_of(problem, c, beta)
        data = bl.Batch(inner=None, outer=ell)
        state = solver.init(jnp.zeros(()), jnp.ones(()), data)
        return bl.scan(solver, state, data, steps=steps, record=lambda state, info: (state.x, state.y))[1]

    ells = np.geomspace(0.01, 30, 200)
    x, y = map(np.asarray, jax.jit(jax.vmap(run))(jnp.asarray(ells)))
    gap = -ells[:, None] * x  # what Φ = ℓx has descended after K steps
    bound = c.bound(K, np.maximum(gap, 0.0), 1.0, 0.0, beta)
    return float(np.max(np.where(gap > 0, ells[:, None] ** 2 / bound, 0))), y[0]


def breaks(kappas: Sequence[float]) -> Iterator[list]:
    for kappa in kappas:
        k = Blocks(1 / kappa, 1.0, 0.0, 1e-9, 1.0, 0.0, 0.0)
        found = [half_parabola(METHODS[rule](k), k.mu) for rule in THREE]
        _, y = found[THREE.index("Nesterov")]
        loop = MomentumLoop(*rule_of(momentum.aid(k))[:2], 1 / kappa, 1.0)
        numbers = y.min(), np.linalg.norm(y), loop.free, loop.drift / kappa
        yield [
            f"{kappa:g}",
            *(f"{worst:.3g}" for worst, _ in found),
            *(f"{number:.3g}" for number in numbers),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, default=40_000, help="steps of a run in the second table")
    record.options(parser)
    options = parser.parse_args()
    few = lambda *rows: rows[:1] if options.quick else rows
    tables = {
        "momentum-stability": ([*METHODS, "runs 3 % below, above"], stability(few(*KAPPAS))),
        "momentum-steps": (
            ["problem and step", *THREE],
            speed(few(*itertools.product(KAPPAS[:3], (weak, random))), options.most),
        ),
        "momentum-half-parabola": (
            [*THREE, "lowest $y_k$", r"$(\sum y_k^2)^{1/2}$", r"$\Gamma_0$", r"$\mu\Gamma$"],
            breaks(few(*KAPPAS[:3], 1000.0)),
        ),
    }
    for name, (columns, rows) in tables.items():
        record.table(name, [r"$\kappa$", *columns], rows, options.record, repeatable=True)


if __name__ == "__main__":
    main()
