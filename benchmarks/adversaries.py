"""One-dimensional problems whose constants hold on a box and are attained there: what an adversary would choose.

    g(x, y) = ½h·y² + c·xy + ½r₁·x²y + ½r₂·xy² + ⅙r₃·y³
    f(x, y) = p·x + m·y + ½a·x² + b·xy + ½d·y² + ⅙a₃·x³ + ⅙d₃·y³          |x| ≤ X, |y| ≤ Y

The constants come first. The third derivatives of g are at their bounds everywhere, every other bound is attained in a
corner of the box: h = μ + |r₂|X + |r₃|Y, or L_yy less as much, |c| = L_xy − |r₁|X − |r₂|Y, and so on. The smaller the
box, the closer to its worst constants the problem is all along. Signs, box, slope of Φ and start are the adversary's.
All fields are arrays with one entry a problem.

`worst` searches: it mutates the problems that came closest to a bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

import bilevel as bl


class Inner(NamedTuple):
    h: Any
    c: Any
    r1: Any
    r2: Any
    r3: Any


class Outer(NamedTuple):
    p: Any
    m: Any
    a: Any
    b: Any
    d: Any
    a3: Any
    d3: Any


def g(x: Any, y: Any, k: Inner) -> Any:
    return y * (0.5 * k.h * y + k.c * x + 0.5 * k.r1 * x**2 + 0.5 * k.r2 * x * y + k.r3 / 6 * y**2)


def f(x: Any, y: Any, k: Outer) -> Any:
    linear, square = k.p * x + k.m * y, 0.5 * k.a * x**2 + k.b * x * y + 0.5 * k.d * y**2
    return linear + square + k.a3 / 6 * x**3 + k.d3 / 6 * y**3


PROBLEM = bl.Problem(outer=f, inner=g)


@dataclass(frozen=True)
class Bounds:
    """The constants, block by block (`theory.Blocks`), one entry a problem; `L` and `rho` are the largest of a kind."""

    mu: np.ndarray
    L_yy: np.ndarray
    L_xy: np.ndarray
    f_xx: np.ndarray
    f_xy: np.ndarray
    f_yy: np.ndarray
    M_y: np.ndarray
    rho_xxy: np.ndarray
    rho_xyy: np.ndarray
    rho_yyy: np.ndarray

    @property
    def L(self) -> np.ndarray:
        return np.max([self.L_yy, self.L_xy, self.f_xx, self.f_xy, self.f_yy], axis=0)

    @property
    def rho(self) -> np.ndarray:
        return np.max([self.rho_xxy, self.rho_xyy, self.rho_yyy], axis=0)

    @classmethod
    def random(cls, rng: np.random.Generator, kappa: np.ndarray) -> "Bounds":
        """Half of them have the paper's single L and ρ, the others blocks of their own; a quarter has ρ = 0."""
        n = len(kappa)
        L, M = 10 ** rng.uniform(-1, 1, n), 10 ** rng.uniform(-2, 1, n)
        mu = L / kappa
        third = 10 ** rng.uniform(-2, 1, n) * L * mu / M * (rng.random(n) < 0.75) * (kappa > 1)
        single = rng.random(n) < 0.5
        share = lambda: np.where(single, 1.0, np.where(rng.random(n) < 0.3, 1.0, rng.uniform(0.05, 1, n)))
        blocks = [L * share() for _ in range(4)]
        return cls(mu, L, *blocks, M, *(third * share() for _ in range(3)))


@dataclass(frozen=True)
class Adversaries:
    """Problems, and where their runs start. The constants hold for |x| ≤ X and |y| ≤ Y."""

    inner: Inner
    outer: Outer
    X: np.ndarray
    Y: np.ndarray
    x0: np.ndarray
    y0: np.ndarray
    v0: np.ndarray

    @property
    def y_error(self) -> np.ndarray:
        return np.abs(self.y0 - self.y_star(self.x0))

    @property
    def v_error(self) -> np.ndarray:
        return np.abs(self.v0 - self.v_star(self.x0))

    def y_star(self, x: np.ndarray) -> np.ndarray:
        """The root of ½r₃y² + (h + r₂x)y + (cx + ½r₁x²) that is a minimum, written so that nothing cancels."""
        k = Inner(*(_beside(value, x) for value in self.inner))
        curve, rest = k.h + k.r2 * x, k.c * x + 0.5 * k.r1 * x**2
        return -2 * rest / (curve + np.sqrt(curve**2 - 2 * k.r3 * rest))

    def v_star(self, x: np.ndarray) -> np.ndarray:
        y = self.y_star(x)
        k, j = (
            Inner(*(_beside(value, x) for value in self.inner)),
            Outer(*(_beside(value, x) for value in self.outer)),
        )
        return (j.m + j.b * x + j.d * y + 0.5 * j.d3 * y**2) / (k.h + k.r2 * x + k.r3 * y)

    def value(self, x: np.ndarray) -> np.ndarray:
        """Φ(x)."""
        return f(x, self.y_star(x), Outer(*(_beside(value, x) for value in self.outer)))

    def slope(self, x: np.ndarray) -> np.ndarray:
        """Φ'(x)."""
        y = self.y_star(x)
        k, j = (
            Inner(*(_beside(value, x) for value in self.inner)),
            Outer(*(_beside(value, x) for value in self.outer)),
        )
        return j.p + j.a * x + j.b * y + 0.5 * j.a3 * x**2 - (k.c + k.r1 * x + k.r2 * y) * self.v_star(x)


def _beside(value: np.ndarray, x: np.ndarray) -> np.ndarray:
    """One entry a problem, next to x with further axes behind the first."""
    return np.reshape(value, np.shape(value) + (1,) * (np.ndim(x) - np.ndim(value))).astype(x.dtype)


@dataclass(frozen=True)
class Choices:
    """What an adversary chooses once the constants are known; numbers without units, one entry a problem."""

    signs: (
        np.ndarray
    )  # of c, a, b, d, r1, r2, r3, a3, d3 and the slope, in rows; less than 1 in size: less than allowed
    high: np.ndarray  # where the curvature is between μ (0) and L_yy (1)
    box: np.ndarray  # X as a share of the largest possible
    bend: np.ndarray  # how much of f_xx and f_yy is left to the third derivatives of f
    travel: np.ndarray  # distance that the run would cover at its first speed, as a share of X
    x0: np.ndarray  # as a share of X
    y_off: np.ndarray  # y₀ − y*, as a share of X·L_xy/μ
    v_off: np.ndarray  # v₀/v* − 1
    cancel: np.ndarray  # v₀ − v* in units of what makes the first step of x zero

    @classmethod
    def random(cls, rng: np.random.Generator, n: int) -> "Choices":
        signs = rng.choice([-1.0, 1.0], (10, n))
        # Half of them in concert: every term of Φ'' has one sign and the third derivatives add to f's (v* is positive).
        c, a = signs[:2]
        concert = np.stack([c, a, -a * c, a, -a, a * c, -a, *signs[7:]])
        signs = np.where(rng.random(n) < 0.5, concert, signs)
        kind = rng.integers(0, 5, n)
        off = rng.choice([-1.0, 1.0], n)
        return cls(
            signs=signs,
            high=(rng.random(n) < 0.15).astype(float),
            box=10 ** rng.uniform(-5, 0, n),
            bend=np.where(rng.random(n) < 0.5, 0.0, rng.random(n)),
            travel=10 ** rng.uniform(-1.5, 0.5, n),
            x0=np.where(rng.random(n) < 0.5, 0.0, rng.uniform(-0.9, 0.9, n)),
            y_off=np.select([kind == 0, kind == 1], [0.0, 0.0], off * 10 ** rng.uniform(-3, 1, n)),
            # exact; off by 30 %; v₀ = 0; exact but for y₀; made to cancel the first step
            v_off=np.select([kind == 1, kind == 2], [0.3 * off, -1.0], 0.0),
            cancel=np.where(kind == 4, rng.uniform(-2, 2, n), 0.0),
        )

    @property
    def exact(self) -> np.ndarray:
        """Whether the run starts at y* and v*."""
        return (self.y_off == 0) & (self.v_off == 0) & (self.cancel == 0)

    def starting_exactly(self) -> "Choices":
        nothing = np.zeros_like(self.y_off)
        return replace(self, y_off=nothing, v_off=nothing, cancel=nothing)

    def after(self, known: Sequence["Choices"]) -> "Choices":
        """As many, of which the first are the known ones."""
        fields = {name: [getattr(one, name) for one in (*known, self)] for name in vars(self)}
        n = len(self.box)
        return Choices(**{name: np.concatenate(parts, axis=-1)[..., :n] for name, parts in fields.items()})

    def bred(self, rng: np.random.Generator, best: np.ndarray, size: float) -> "Choices":
        """As many again: the best as they are, and mutations of them, of the given size."""
        n = len(self.box)
        parents = np.concatenate([best, rng.choice(best, n - len(best))])
        moved = np.arange(n) >= len(best)
        pick = lambda field: field[..., parents]
        noise = lambda shape: size * moved * rng.standard_normal(shape) * (rng.random(shape) < 0.5)
        added = lambda field, low, high: np.clip(pick(field) + noise(pick(field).shape), low, high)
        scaled = lambda field, low, high: np.clip(pick(field) * np.exp(4 * noise(n)), low, high)
        return Choices(
            signs=added(self.signs, -1, 1),
            high=added(self.high, 0, 1),
            box=scaled(self.box, 1e-4, 1),  # below, rounding is what is found
            bend=added(self.bend, 0, 1),
            travel=scaled(self.travel, 1e-6, 10),
            x0=added(self.x0, -1, 1),
            y_off=pick(self.y_off) * np.exp(noise(n)),
            v_off=pick(self.v_off) * np.exp(noise(n)),
            cancel=pick(self.cancel) * np.exp(noise(n)),
        )

    def against(
        self,
        k: Bounds,
        beta: np.ndarray,
        steps: int,
        alpha: np.ndarray | None = None,
        steepest: np.ndarray | float = np.inf,
    ) -> Adversaries:
        """The problems, for runs of so many steps of size β whose first estimate of Φ' is at most `steepest`.

        With `alpha` they are made against ITD, which takes α·∇_y f for v*.
        """
        s, tiny = k.L_xy / k.mu, np.finfo(float).tiny
        y_off = np.abs(self.y_off)
        # The largest X at which no bound is used up by more than half, with Y = (1 + |y_off|)·s·X.
        Y = (1 + y_off) * s
        room = [
            (k.L_yy - k.mu, k.rho_xyy + k.rho_yyy * Y),
            (k.L_xy, k.rho_xxy + k.rho_xyy * Y),
            (k.M_y, k.f_xy + k.f_yy * Y),
        ]
        with np.errstate(over="ignore"):
            most = np.min([0.5 * have / np.maximum(used, tiny) for have, used in room], axis=0)
        X = np.minimum(self.box * most, beta * steps * steepest / self.travel)
        Y = Y * X
        slope = self.travel * X / (beta * steps)
        c, a, b, d, r1, r2, r3, a3, d3, downhill = self.signs
        r1, r2, r3 = r1 * k.rho_xxy, r2 * k.rho_xyy, r3 * k.rho_yyy
        spread = np.abs(r2) * X + np.abs(r3) * Y
        inner = Inner(
            h=k.mu + spread + self.high * (k.L_yy - k.mu - 2 * spread),
            c=c * (k.L_xy - np.abs(r1) * X - np.abs(r2) * Y),
            r1=r1,
            r2=r2,
            r3=r3,
        )
        m = k.M_y - k.f_xy * X - k.f_yy * Y
        outer = Outer(
            p=np.sign(downhill) * slope + inner.c * m * (1 / inner.h if alpha is None else alpha),
            m=m,
            a=a * k.f_xx * (1 - self.bend),
            b=b * k.f_xy,
            d=d * k.f_yy * (1 - self.bend),
            a3=a3 * k.f_xx * self.bend / X,
            d3=d3 * k.f_yy * self.bend / np.maximum(Y, tiny),
        )
        bare = Adversaries(inner, outer, X, Y, self.x0 * X, 0 * X, 0 * X)
        y0 = bare.y_star(bare.x0) + self.y_off * s * X
        v0 = bare.v_star(bare.x0) * (1 + self.v_off) + self.cancel * slope / inner.c * np.abs(c)
        return Adversaries(inner, outer, X, Y, bare.x0, y0, v0)


def worst(
    ratio: Callable[[Choices], np.ndarray],
    start: Choices,
    rng: np.random.Generator,
    generations: int = 40,
    keep: float = 0.02,
) -> tuple[float, Choices]:
    """The smallest `ratio` found, and the choices of it: the best few of every generation, and mutations of them."""
    choices, count = start, max(1, int(keep * len(start.box)))
    for i in range(generations):
        found = ratio(choices)
        best = np.argsort(found)[:count]
        if i + 1 < generations:
            choices = choices.bred(rng, best, 0.5 * 0.02 ** (i / generations))
    one = lambda field: field[..., best[:1]]
    return float(found[best[0]]), Choices(**{name: one(field) for name, field in vars(choices).items()})
