"""Momentum on y and v: which outer steps are stable and certified, what they are worth, and where that ends.

    python benchmarks/momentum.py [--most 40000]

1. The first unstable β on quadratics in one dimension, from the loop's frequency response and confirmed by runs of the
   real solver 3 % below and above it, with the certified β.
2. Steps until ‖∇Φ‖ stays below 10⁻³ of its start, at 0.9 of the largest certified β and at the best of a grid. "weak":
   one outer variable that acts on the weakest mode alone. "random": `bl.problems.random_quadratic` with one outer and
   three inner variables, whose f is not quadratic; the median over five seeds.
3. A smooth g whose curvature is L for y > 0 and μ for y < 0, for which the constants' other assumptions hold.
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import bilevel as bl
from bilevel.theory import Blocks, Certificate, Constants, momentum, star

jax.config.update("jax_enable_x64", True)

KAPPAS = (10.0, 30.0, 100.0)
OMEGA = np.geomspace(1e-4, np.pi, 40_001)
HESSIANS = list(itertools.product(np.linspace(-1, 1, 5), repeat=3))  # f_xx, f_xy, f_yy


def polyak(k: Blocks) -> Certificate:
    root = np.sqrt(k.kappa)
    step = 4 / (np.sqrt(k.L_yy) + np.sqrt(k.mu)) ** 2
    return momentum.heavy_ball(k, step, step, ((root - 1) / (root + 1)) ** 2)


def damped_less(k: Blocks) -> Certificate:
    return momentum.aid(k, m=1 - np.sqrt(1.5 / k.kappa))


METHODS: dict[str, Callable[[Any], Certificate]] = {
    "plain, 1/L": lambda k: star.aid(k, 1 / k.L_yy, 1 / k.L_yy),
    "plain, 2/(L + μ)": star.aid,
    "Nesterov": momentum.aid,
    "Nesterov, m = 1 − √(1.5/κ)": damped_less,
    "heavy ball": momentum.heavy_ball,
    "heavy ball, Polyak": polyak,
}


def rule_of(c: Certificate) -> tuple[float, float, bool]:
    return float(c.alpha), float(getattr(c, "m", 0.0)), getattr(c, "nesterov", False)


def solver_of(problem: bl.Problem, c: Certificate, beta: Any) -> bl.Solver:
    alpha, m, nesterov = rule_of(c)
    rule = optax.sgd(alpha, momentum=m, nesterov=nesterov) if m else alpha
    return bl.aid(problem, rule, rule, beta)


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


def grows(c: Certificate, mu: float, f: tuple, beta: float, steps: int = 60_000) -> bool:
    def lengths(beta):
        solver, data = solver_of(LINE, c, beta), bl.Batch(jnp.array([mu, 1.0]), jnp.array(f))
        state = solver.init(jnp.ones(()), jnp.ones(()) / mu, data)
        half = bl.scan(solver, state, data, steps=steps // 2)[0]
        amplitude = lambda state: jnp.abs(state.x) + jnp.abs(state.y) * mu + jnp.abs(state.v) * mu**2
        record = lambda state, info: amplitude(state)
        early = bl.scan(solver, state, data, steps=2_000, record=record)[1]
        late = bl.scan(solver, half, data, steps=2_000, record=record)[1]
        return jnp.max(late) / jnp.max(early)

    return bool(jax.jit(lengths)(beta) > 1)


def stability() -> None:
    print("\n1. | κ | rule | certified β | first unstable β | ratio | ·κ^2.5 | runs 3 % below, above |")
    for kappa in (*KAPPAS, 300.0, 1000.0):
        k = Constants(1 / kappa, 1.0, 1.0, 0.0).blocks
        convex = [f for f in HESSIANS if f[0] + 2 * f[1] * kappa + f[2] * kappa**2 > 0]
        for name, make in METHODS.items():
            c = make(k)
            beta, f = min((first_unstable(c, k.mu, f), f) for f in convex)
            said = ["grows" if grows(c, k.mu, f, share * beta) else "settles" for share in (0.97, 1.03)]
            row = f"{c.beta_max:.2e} | {beta:.2e} | {beta / c.beta_max:.2f} | {beta * kappa**2.5:.3f}"
            print(f"| {kappa:g} | {name} | {row} | {', '.join(said)} |", flush=True)


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


def speed(most: int) -> None:
    print("\n2. | κ | problem | rule | certified β | steps | best β over it | steps |")
    for kappa, (name, make_case) in itertools.product(KAPPAS, {"weak": weak, "random": random}.items()):
        for rule, make in METHODS.items():
            c = make(Constants(1 / kappa, 1.0, 1.0, 0.0).blocks)
            shares = np.concatenate([[0.9], 2.0 ** np.arange(-2, 9, 0.5)])
            taken = steps_to(make_case(kappa), c, shares * c.beta_max, most, name == "random")
            taken = np.atleast_2d(taken)
            at = np.median(taken[:, 0])
            best, where = np.median(taken.min(axis=1)), np.median(shares[taken.argmin(axis=1)])
            said = lambda n: f"{n:.0f}" if np.isfinite(n) else f"> {most}"
            print(
                f"| {kappa:g} | {name} | {rule} | {c.beta_max:.1e} | {said(at)} | {where:.1f} | {said(best)} |",
                flush=True,
            )


# 3. Where it ends


def half_parabola(kappa: float, width: float = 0.05, steps: int = 400) -> None:
    """g = ½μy² + ½(L − μ)max(y, 0)², smoothed over `width`; f = xy + ℓx. Then ∇²_xy g = 0, Φ = ℓx, and e_k = ŷ_k."""
    mu, beta = 1 / kappa, 1e-6
    ramp = lambda y: jnp.where(
        y > width, 0.5 * (y - width / 2) ** 2 + width**2 / 24, jnp.where(y > 0, y**3 / (6 * width), 0.0)
    )
    problem = bl.Problem(
        outer=lambda x, y, ell: x * y + ell * x, inner=lambda x, y: 0.5 * mu * y**2 + (1 - mu) * ramp(y)
    )
    k = Blocks(mu, 1.0, 0.0, 1e-9, 1.0, 0.0, 0.0)
    for name in ("plain, 2/(L + μ)", "Nesterov", "heavy ball"):
        c, K = METHODS[name](k), np.arange(1, steps + 1)

        def run(ell, c=c):
            solver = solver_of(problem, c, beta)
            data = bl.Batch(inner=None, outer=ell)
            state = solver.init(jnp.zeros(()), jnp.ones(()), data)
            return bl.scan(solver, state, data, steps=steps, record=lambda state, info: (state.x, state.y))[1]

        ells = np.geomspace(0.01, 30, 200)
        x, y = map(np.asarray, jax.jit(jax.vmap(run))(jnp.asarray(ells)))
        gap = -ells[:, None] * x  # what Φ = ℓx has descended after K steps
        bound = c.bound(K, np.maximum(gap, 0.0), 1.0, 0.0, beta)
        worst = np.max(np.where(gap > 0, ells[:, None] ** 2 / bound, 0))
        print(
            f"| {kappa:g} | {name} | {y.min():.2f} | {np.linalg.norm(y[0]):.2f} | {worst:.2f} |", flush=True
        )


def breaks() -> None:
    print("\n3. | κ | rule | lowest y after y₀ = 1 | (Σy²)^½ | run/bound |")
    for kappa in (*KAPPAS, 1000.0):
        half_parabola(kappa)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, default=40_000, help="steps of a run in the second table")
    options = parser.parse_args()
    stability()
    speed(options.most)
    breaks()


if __name__ == "__main__":
    main()
