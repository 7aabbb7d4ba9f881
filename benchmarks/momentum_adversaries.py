"""Attacks on the certificates of momentum, in plain NumPy: where they hold, and where curvature that changes ends them.

    python benchmarks/momentum_adversaries.py [--record docs/measured]

1. Quadratics with three inner variables and every block at its bound, starts from exact to far off: run over bound.
2. Curvature that alternates between μ and L whatever y is: the largest growth a step over all periods of a few steps.
3. ∇_y g with six random kinks, x held fixed: how many runs have not come to rest.
4. ∇²_yy g that goes smoothly from μ to L: the bound that the formula would give with Λ in place of f's constants.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import record

from bilevel.theory import Blocks, momentum
from bilevel.theory.certificates.momentum import MomentumCertificate
from bilevel.theory.certificates.momentum_gains import MomentumLoop

Array = np.ndarray


def blocks(kappa: float) -> Blocks:
    return Blocks(1 / kappa, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)


def polyak(k: Blocks) -> MomentumCertificate:
    root = float(np.sqrt(k.kappa))
    step = 4 / (1 + 1 / root) ** 2
    return momentum.heavy_ball(k, step, step, ((root - 1) / (root + 1)) ** 2)


RULES: dict[str, Callable[[Blocks], MomentumCertificate]] = {
    "Nesterov": momentum.aid,
    "damped less": lambda k: momentum.aid(k, m=max(0.0, 1 - np.sqrt(1.5 / k.kappa))),
    "heavy ball": momentum.heavy_ball,
    "heavy ball, Polyak": polyak,
}


class Rule:
    """`optax.sgd` with momentum, on arrays."""

    def __init__(self, c: MomentumCertificate, step: float):
        self.m, self.nesterov, self.step, self.trace = float(c.m), c.nesterov, float(step), 0.0

    def __call__(self, point: Array, gradient: Array) -> Array:
        self.trace = gradient + self.m * self.trace
        return point - self.step * (gradient + self.m * self.trace if self.nesterov else self.trace)


# 1. Quadratics


def quadratics(kappa: float, c: MomentumCertificate, rng: np.random.Generator, count: int = 400) -> float:
    """f = ½f_xx x² + f_xy x dᵀy + ½f_yy‖y‖² + ℓx + pᵀy, g = ½yᵀdiag(h)y − x cᵀy; the largest mean over its bound.

    The gap is what the run has descended: all that the proof uses.
    """
    column = lambda a: a[:, None]
    h = np.stack(
        [np.full(count, 1 / kappa), np.ones(count), np.exp(rng.uniform(-np.log(kappa), 0, count))], 1
    )
    coupling = rng.normal(size=(count, 3)) * rng.choice([0, 1, 1, 1], (count, 3))
    coupling[: count // 2, 1:] = 0
    coupling[np.linalg.norm(coupling, axis=1) < 1e-9] = [1, 0, 0]
    coupling /= np.linalg.norm(coupling, axis=1, keepdims=True)
    slope, d = coupling / h, coupling * rng.choice([-1, 1], (count, 1))
    f_yy = rng.choice([1.0, 1.0, 0.5, -1.0], count)
    f_xx, f_xy = rng.choice([-1.0, 0.0, 1.0], (2, count))
    ell = rng.normal(size=count) * rng.choice([0, 1, 10], count)
    p = rng.normal(size=(count, 3)) * rng.choice([0, 1], (count, 1))
    curvature = f_xx + 2 * f_xy * np.sum(d * slope, 1) + f_yy * np.sum(slope**2, 1)
    linear = ell + np.sum(p * slope, 1)
    phi = lambda x: 0.5 * curvature * x**2 + linear * x
    force = lambda x, y: column(f_xy * x) * d + column(f_yy) * y + p

    x = rng.normal(size=count)
    off_y = rng.choice([0.0, 0.0, 1.0, 30.0], (count, 1)) * rng.normal(size=(count, 3))
    off_v = rng.choice([0.0, 0.0, 1.0, 100.0], (count, 1)) * rng.normal(size=(count, 3))
    y = column(x) * slope + off_y
    v = force(x, column(x) * slope) / h + off_v
    errors = np.linalg.norm(off_y, axis=1), np.linalg.norm(off_v, axis=1)
    beta, start = rng.choice([0.3, 0.7, 0.98], count) * c.beta_max, phi(x)
    on_y, on_v = Rule(c, c.alpha), Rule(c, c.eta)
    total, most, steps = np.zeros(count), 0.0, int(min(6000, 60 * kappa))
    for n in range(1, steps + 1):
        total += (linear + curvature * x) ** 2
        y = on_y(y, h * y - column(x) * coupling)
        v = on_v(v, h * v - force(x, y))
        x = x - beta * (f_xx * x + f_xy * np.sum(d * y, 1) + ell + np.sum(coupling * v, 1))
        if n < 30 or n % max(1, steps // 60) == 0:
            gap = start - phi(x)
            fine = (gap >= 0) & (np.abs(x) < 1e100)
            bound = c.bound_from(n, np.where(fine, gap, 0.0), errors, beta)
            most = max(most, _share(total / n, bound, fine))
    return most


# 2. Alternating curvature


def growth(c: MomentumCertificate, mu: float, longest: int) -> tuple[float, int, int]:
    """(growth a step, steps with μ, steps with L) of the worst period: up to `longest` steps with μ, seven with L."""

    def matrix(curvature: float) -> Array:
        m, D = float(c.m), float(c.alpha) * curvature
        return np.array([[1 - D - m * D, -m * m], [D, m]] if c.nesterov else [[1 - D, -m], [D, m]])

    power, flat, steep = np.linalg.matrix_power, matrix(mu), matrix(1.0)
    return max(
        (float(np.max(np.abs(np.linalg.eigvals(power(flat, a) @ power(steep, b)))) ** (1 / (a + b))), a, b)
        for a in range(1, longest + 1)
        for b in range(1, 8)
    )


# 3. Kinks


def kinks(kappa: float, c: MomentumCertificate, rng: np.random.Generator, count: int = 20_000) -> float:
    """The share of runs with |y − y*| above 1 % of its start after 40√κ + 100 steps; y* = 0, slopes μ or L between."""
    at = np.sort(rng.uniform(0.02, 3, (count, 6)) * rng.choice([-1, 1], (count, 6)), axis=1)
    edges = np.concatenate([np.full((count, 1), -np.inf), at, np.full((count, 1), np.inf)], axis=1)
    slopes = rng.choice([1 / kappa, 1.0], (count, 7))

    def gradient(y: Array) -> Array:
        low, high = np.minimum(y, 0)[:, None], np.maximum(y, 0)[:, None]
        inside = np.clip(edges[:, 1:], low, high) - np.clip(edges[:, :-1], low, high)
        return np.sign(y) * np.sum(inside * slopes, axis=1)

    y = rng.uniform(0.5, 5, count) * rng.choice([-1, 1], count)
    start, rule = np.abs(y), Rule(c, c.alpha)
    for _ in range(int(40 * np.sqrt(kappa)) + 100):
        y = rule(y, gradient(y))
    return float(np.mean(np.abs(y) > 0.01 * start))


# 4. Smooth curvature


def smooth(
    kappa: float, make: Callable, exact: bool, rng: np.random.Generator, count: int = 3000, steps: int = 400
) -> float:
    """The largest mean over what the formula would promise; ∇²_yy g = μ + (L − μ)·sigmoid(±(y − center)/width)."""
    mu = 1 / kappa
    width, side = 10 ** rng.uniform(-2, 1, count), rng.choice([-1.0, 1.0], count)
    center = rng.normal(size=count) * 10 ** rng.uniform(-1, 0.5, count) * rng.choice([0, 1, 1], count)
    inside = lambda y: side * (y - center) / width
    gradient = lambda y: mu * y + (1 - mu) * side * width * np.logaddexp(0, inside(y))
    hessian = lambda y: mu + (1 - mu) * 0.5 * (1 + np.tanh(inside(y) / 2))
    coupling = 10 ** rng.uniform(-2, 0, count)
    f_yy, f_xy, f_xx = rng.choice([0, 0.3, 1, -1], count), *rng.choice([0, 1, -1], (2, count))
    t, ell = rng.normal(size=(2, count)) * 10 ** rng.uniform(-2, 1, (2, count))
    slope_y = lambda x, y: f_yy * (y - t) + f_xy * x
    phi = lambda x, y: 0.5 * f_xx * x**2 + ell * x + f_xy * x * y + 0.5 * f_yy * (y - t) ** 2

    def solution(x: Array) -> Array:
        low, high = np.full(count, -1e4), np.full(count, 1e4)
        for _ in range(30):
            middle = 0.5 * (low + high)
            above = gradient(middle) > coupling * x
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        y = 0.5 * (low + high)
        for _ in range(3):
            y = y - (gradient(y) - coupling * x) / hessian(y)
        return y

    x = rng.normal(size=count)
    y = solution(x)
    v, start = slope_y(x, y) / hessian(y), phi(x, y)
    M_y = 1.5 * np.abs(slope_y(x, y)) + 10 ** rng.uniform(-3, 0, count)
    Lambda_yy = np.abs(f_yy) + (1 - mu) / (4 * width) * M_y / mu
    off = 0.0 if exact else 10 ** rng.uniform(-1, 1.5, count) * rng.choice([-1, 1], count)
    y = y + off
    k = Blocks(mu, 1.0, coupling, np.abs(f_xx), np.abs(f_xy), Lambda_yy, M_y)
    c = _formula_for(make(Blocks(mu, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)), k)
    beta = rng.choice([0.1, 0.5, 0.98], count) * np.minimum(c.beta_max, 1e3)
    on_y, on_v = Rule(c, c.alpha), Rule(c, c.eta)
    total, most, fine = np.zeros(count), 0.0, np.ones(count, bool)
    for n in range(1, steps + 1):
        at = solution(x)
        fine &= np.abs(slope_y(x, at)) <= M_y  # as long as the constants hold
        total += (f_xx * x + ell + f_xy * at + coupling * slope_y(x, at) / hessian(at)) ** 2
        y = on_y(y, gradient(y) - coupling * x)
        v = on_v(v, hessian(y) * v - slope_y(x, y))
        x = x - beta * (f_xx * x + ell + f_xy * y + coupling * v)
        if n < 20 or n % 20 == 0:
            gap = start - phi(x, solution(x))
            judged = fine & (gap > 1e-9 * np.abs(start)) & (np.abs(x) < 1e6)
            bound = c.bound_from(n, np.where(judged, gap, 1.0), (np.abs(off), 0.0), beta)
            most = max(most, _share(total / n, bound, judged))
    return most


def _formula_for(c: MomentumCertificate, k: Blocks) -> MomentumCertificate:
    """The certificate's formula for other blocks with the same μ and L_yy, whether or not it holds there."""
    loop = MomentumLoop(float(c.alpha), float(c.m), float(k.mu), float(k.L_yy), c.nesterov)
    per_a = k.f_xy + k.L_xy * loop.force * k.f_yy
    gain = k.L_xy * loop.drift * (per_a + k.f_xy + k.f_yy * k.y_slope)
    return replace(c, constants=k, unit_gain=gain, transient=(per_a * loop.free, k.L_xy * loop.free))


def _share(mean: Array, bound: Array, judged: Array) -> float:
    """The largest mean/bound of those that are judged, where both are zero zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(judged & (mean > 0), mean / bound, 0.0)))


# The tables, with random numbers of its own for every κ


def of_quadratics(kappas: Sequence[float]) -> Iterator[list]:
    """Ends the program if a bound is exceeded."""
    for kappa in kappas:
        rng = np.random.default_rng([1, int(2 * kappa)])
        found = [quadratics(kappa, make(blocks(kappa)), rng) for make in RULES.values()]
        yield [f"{kappa:g}", *(f"{share:.3f}" for share in found)]
        if max(found) > 1:
            raise SystemExit(f"a run with κ = {kappa:g} is above its bound: {found}")


def of_growth(kappas: Sequence[float]) -> Iterator[list]:
    for kappa in kappas:
        found = [
            growth(make(blocks(kappa)), 1 / kappa, 4 * int(np.sqrt(kappa)) + 1) for make in RULES.values()
        ]
        yield [f"{kappa:g}", *(f"{grown:.3f} ({flat}, {steep})" for grown, flat, steep in found)]


def of_kinks(kappas: Sequence[float]) -> Iterator[list]:
    for kappa in kappas:
        rng = np.random.default_rng([3, int(kappa)])
        found = [kinks(kappa, make(blocks(kappa)), rng) for make in RULES.values()]
        yield [f"{kappa:g}", *(f"{100 * share:.1f} %" for share in found)]


def of_smooth(kappas: Sequence[float], rules: Sequence[str]) -> Iterator[list]:
    for kappa in kappas:
        for i, rule in enumerate(rules):
            rng = np.random.default_rng([4, int(kappa), i])
            yield [
                f"{kappa:g}",
                rule,
                *(f"{smooth(kappa, RULES[rule], exact, rng):.4f}" for exact in (True, False)),
            ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    options = parser.parse_args()
    few = lambda count, *all_of_them: all_of_them[:count] if options.quick else all_of_them
    tables = {
        "momentum-quadratics": (RULES, of_quadratics(few(4, 1.5, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0))),
        "momentum-alternating": (RULES, of_growth(few(2, 10.0, 30.0, 100.0, 1000.0))),
        "momentum-kinks": (RULES, of_kinks(few(1, 10.0, 30.0, 100.0))),
        "momentum-smooth": (
            ["rule", "exact start", "$y_0$ off"],
            of_smooth(few(1, 10.0, 30.0, 100.0), few(1, "Nesterov", "heavy ball")),
        ),
    }
    for name, (columns, rows) in tables.items():
        record.table(name, [r"$\kappa$", *columns], rows, options.record, repeatable=True)


if __name__ == "__main__":
    main()
