"""How close real runs come to every certificate: adversarial and random problems through the real solvers.

    python benchmarks/certificates.py [--problems 2500] [--random 1000] [--seed 0] [--record docs/measured]

For every certificate and at 0.1, 0.5 and 0.98 of its largest β: `problems` one-dimensional problems made against it
(`adversaries.py`, κ from 1 to 1000) and `random` three-dimensional ones (`random_problems.py`). At every K up to 100,
and a hundred more, the mean of ‖∇Φ(x_k)‖² is compared with the bound whose gap is what the run itself descended,
Φ(x₀) − min_{j≤K} Φ(x_j), the smallest that is valid. A run counts up to where it leaves the box in which its constants
hold. The table has the smallest bound/actual: from any start, and from y*(x₀) and v*(x₀). Last come the number of runs
judged, and of those that were above their bound.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any

import adversaries
import jax
import numpy as np
import random_problems
import record
from adversaries import Adversaries, Bounds, Choices

import bilevel as bl
from bilevel import theory

SHARES = (0.1, 0.5, 0.98)  # of beta_max
EDGES = np.array([1.0, 1.5, 3.0, 10.0, 100.0, 1000.0])  # of the ranges of κ
STEPS = (30, 60, 200, 600, 3000)  # in each: long enough for errors to settle


@dataclass(frozen=True)
class Case:
    """One certificate: how to make it from constants, M and a radius for y, and whether M has to bound all of ∇f."""

    analysis: str
    method: str
    loops: tuple[int, int] = (1, 1)  # inner and adjoint steps a step, for AID

    @property
    def name(self) -> str:
        loops = "" if self.loops == (1, 1) else ", N = {}, Q = {}, α = η = 1/L".format(*self.loops)
        return f"{self.analysis}.{self.method.lower()}{loops}"

    @property
    def whole(self) -> bool:
        """Lemma 5.12 bounds the steps of ITD by M, which then has to bound ∇_x f as well."""
        return self.method == "ITD" and self.analysis in ("earlier", "paper", "sharp")

    def certificate(self, k: Bounds, M: np.ndarray, y_error: np.ndarray) -> theory.Certificate:
        if self.loops != (1, 1):  # not longer than 1/L, so that no inner step leaves the box
            return theory.star.aid(theory.Blocks(**asdict(k)), 1 / k.L_yy, 1 / k.L_yy, *self.loops)
        if self.analysis == "star":
            return getattr(theory.star, self.method.lower())(theory.Blocks(**asdict(k)))
        constants = theory.Constants(k.mu, k.L, M, k.rho)
        make = {"earlier": theory.prior, "paper": theory, "sharp": theory.sharp, "tight": theory.tight}
        make = getattr(make[self.analysis], self.method.lower())
        return (
            make(constants, np.maximum(y_error, theory.itd(constants).R_y_min))
            if self.whole
            else make(constants)
        )


CASES = [Case(analysis, "AID") for analysis in ("earlier", "paper", "sharp", "tight", "star")]
CASES += [Case("star", "AID", (4, 3))]
CASES += [Case(analysis, "ITD") for analysis in ("earlier", "paper", "sharp", "tight", "star")]
CASES += [Case("star", "SOBA")]


@partial(jax.jit, static_argnames=("problem", "method", "loops", "steps"))
def run(problem, method, loops, steps, alpha, eta, beta, x0, y0, v0, inner, outer):
    """x_k for k = 0..K and the inner iterates, with one row a problem, by the library's solvers."""

    def one(alpha, eta, beta, x0, y0, v0, inner, outer):
        data = bl.Batch(inner=inner, outer=outer)
        if method == "ITD":
            solver = bl.itd(problem, inner=alpha, outer=beta)
            state = solver.init(x0, y0, data)
        else:
            N, Q = loops
            adjoint = eta if Q == 1 else bl.adjoints.steps(eta, Q)
            solver = bl.aid(problem, inner=alpha, adjoint=adjoint, outer=beta, inner_steps=N)
            solver = solver if method == "AID" else bl.soba(problem, inner=alpha, adjoint=eta, outer=beta)
            state = solver.init(x0, y0, data)._replace(v=v0)
        _, (x, y) = bl.scan(solver, state, data, steps=steps, record=lambda state, info: (state.x, state.y))
        return jax.numpy.concatenate([x0[None], x]), y

    return jax.vmap(one)(alpha, eta, beta, x0, y0, v0, inner, outer)


@dataclass(frozen=True)
class Judged:
    """Of every problem: the smallest bound/actual over all K (infinite if none could be judged), and its start."""

    ratio: np.ndarray
    exact: np.ndarray  # whether it started at y* and v*

    def __str__(self) -> str:
        return f"{self.ratio.min():.3f}, {self.ratio[self.exact].min(initial=np.inf):.3f}"

    @property
    def runs(self) -> int:
        return int(np.sum(np.isfinite(self.ratio)))

    @property
    def violations(self) -> int:
        return int(np.sum(self.ratio < 1))


def horizons(steps: int) -> np.ndarray:
    """Every K up to 100, and a hundred more up to `steps`."""
    return np.unique(
        np.append(np.arange(1, min(steps, 100) + 1), np.geomspace(1, steps, 200).round().astype(int))
    )


def descended(values: np.ndarray) -> np.ndarray:
    """Φ(x₀) − min_{j≤K} Φ(x_j) for K = 1, 2, …, no less than it is by rounding."""
    rounding = 8 * np.finfo(values.dtype).eps * np.max(np.abs(values), axis=1, keepdims=True)
    return values[:, :1] - np.minimum.accumulate(values, axis=1)[:, 1:] + rounding


def judge(
    certificate: theory.Certificate,
    beta: np.ndarray,
    squares: np.ndarray,
    values: np.ndarray,
    inside: np.ndarray,
    y_error: np.ndarray,
    v_error: np.ndarray,
) -> np.ndarray:
    """bound/actual at all `horizons`, in rows; infinite where the run has left its box.

    `squares` are ‖∇Φ(x_k)‖² for k < K, `values` Φ(x_k) for k ≤ K, `inside` whether x_K and all before it count.
    """
    K = horizons(squares.shape[1])
    actual = np.cumsum(squares, axis=1)[:, K - 1] / K
    descent = descended(values)[:, K - 1]
    column = lambda a: np.broadcast_to(np.asarray(a)[:, None], actual.shape).T
    bound = certificate.bound(
        np.broadcast_to(K[:, None], actual.T.shape),
        descent.astype(float).T,
        column(y_error),
        column(v_error),
        column(beta),
    ).T
    if not np.all(np.isfinite(bound[inside[:, K - 1]])):
        raise AssertionError("a certified β has a bound")
    ratio = bound / np.maximum(actual.astype(float), np.finfo(float).tiny)
    return np.where(inside[:, K - 1], ratio, np.inf)


def against(
    case: Case, k: Bounds, choices: Choices, share: float, steps: int
) -> tuple[theory.Certificate, np.ndarray, Adversaries, np.ndarray]:
    """The certificate, its β, the problems, and which of them it covers.

    Where M and the radius depend on β, they grow until they are valid, for nearly all.
    """
    M, y_error, covered = k.M_y, np.zeros_like(k.M_y), np.zeros_like(k.M_y, bool)
    for _ in range(20):
        certificate = case.certificate(k, M, y_error)
        beta = share * np.broadcast_to(certificate.beta_max, k.mu.shape)
        alpha = certificate.alpha if case.method == "ITD" else None
        problems = choices.against(k, beta, steps, alpha, steepest=k.M_y if case.whole else np.inf)
        needed = np.hypot(k.M_y, np.abs(problems.outer.p) + k.f_xx * problems.X + k.f_xy * problems.Y)
        covered = (needed <= M) & (problems.y_error <= y_error) | (not case.whole)
        if np.all(covered):
            break
        M = np.where(needed <= M, M, 1.1 * needed)
        y_error = np.where(problems.y_error <= y_error, y_error, 1.1 * problems.y_error)
    return certificate, beta, problems, covered


def adversarial(
    case: Case, rng: np.random.Generator, count: int, share: float, lengths: Sequence[int]
) -> Iterator[Judged]:
    """`count` problems against one certificate, range by range of κ, in runs of so many steps."""
    for (low, high), steps in zip(pairwise(EDGES), lengths, strict=True):
        n = count // len(lengths)
        kappa = np.exp(rng.uniform(np.log(low), np.log(high), n))
        k, choices = Bounds.random(rng, kappa), Choices.random(rng, n)
        certificate, beta, problems, covered = against(case, k, choices, share, steps)
        squares, values, inside = measured(case, certificate.alpha, certificate.eta, beta, problems, steps)
        inside, y_error = inside & covered[:, None], np.where(covered, problems.y_error, 0.0)
        ratio = judge(certificate, beta, squares, values, inside, y_error, problems.v_error)
        yield Judged(ratio.min(axis=1), problems.y_error + problems.v_error * (case.method != "ITD") == 0)


def measured(
    case: Case, alpha: Any, eta: Any, beta: np.ndarray, problems: Adversaries, steps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a run of every problem: ‖∇Φ(x_k)‖² for k < K, Φ(x_k) for k ≤ K, and whether the run has been in its box."""
    full = lambda a: np.broadcast_to(0.0 if a is None else a, beta.shape)
    start = problems.x0, problems.y0, problems.v0
    data = problems.inner, problems.outer
    out = run(
        adversaries.PROBLEM, case.method, case.loops, steps, full(alpha), full(eta), beta, *start, *data
    )
    x, y = (np.array(a) for a in out)
    edge = 1 + 1e-9  # rounding
    inside = (np.abs(x[:, 1:]) <= edge * problems.X[:, None]) & (np.abs(y) <= edge * problems.Y[:, None])
    inside = np.logical_and.accumulate(inside, axis=1)
    x[:, 1:] = np.where(inside, x[:, 1:], x[:, :1])
    values = problems.value(x.astype(np.longdouble))  # β‖∇Φ‖² may be an ulp of Φ in double precision
    return problems.slope(x[:, :-1]) ** 2, values, inside


def random(case: Case, rng: np.random.Generator, count: int, share: float, steps: int = 150) -> Judged:
    """`count` random three-dimensional problems."""
    k, inner, outer, x0, y_off, v_off = random_problems.sample(rng, count)
    star = random_problems.solved(x0, 0 * x0, inner, outer)
    y0, v0 = star.y + y_off, np.asarray(star.v) * (1 + v_off[:, None])
    y_error, v_error = np.linalg.norm(y_off, axis=1), np.linalg.norm(v0 - star.v, axis=1)
    certificate = case.certificate(k, k.M_y, y_error)  # M_y bounds all of ∇f here
    beta = share * np.broadcast_to(certificate.beta_max, k.mu.shape)
    full = lambda a: np.broadcast_to(0.0 if a is None else a, beta.shape)
    sizes = full(certificate.alpha), full(certificate.eta), beta
    x, _ = run(random_problems.PROBLEM, case.method, case.loops, steps, *sizes, x0, y0, v0, inner, outer)
    values, squares = (np.asarray(a) for a in random_problems.solved_along(x, star.y, inner, outer))
    inside = np.ones_like(values[:, 1:], bool)
    ratio = judge(certificate, beta, squares[:, :-1], values, inside, y_error, v_error)
    return Judged(ratio.min(axis=1), y_error + v_error * (case.method != "ITD") == 0)


def rows(problems: int, random_ones: int, seed: int, steps: Sequence[int]) -> Iterator[list]:
    """Of every certificate at every share of its β. Ends the program if a run was above its bound."""
    for (i, case), (j, share) in product(enumerate(CASES), enumerate(SHARES)):
        rng = np.random.default_rng([seed, i, j])
        groups = [
            *adversarial(case, rng, problems, share, steps),
            random(case, rng, random_ones, share, min(150, *steps)),
        ]
        runs, violations = sum(group.runs for group in groups), sum(group.violations for group in groups)
        yield [f"`{case.name}`", share, *groups, runs, violations]
        if violations:
            raise SystemExit(f"{violations} runs are above the bound of {case.name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=2500, help="adversarial problems for each row")
    parser.add_argument("--random", type=int, default=1000, help="random problems for each row")
    parser.add_argument("--seed", type=int, default=0)
    record.options(parser)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    ranges = [f"κ {low:g}–{high:g}" for low, high in pairwise(EDGES)]
    columns = ["certificate", r"$\beta/\beta_{\max}$", *ranges, "random, 3-D", "runs", "violations"]
    counts = (
        (50, 10, options.seed, [40] * 5)
        if options.quick
        else (options.problems, options.random, options.seed, STEPS)
    )
    record.table("certificates", columns, rows(*counts), options.record)


if __name__ == "__main__":
    main()
