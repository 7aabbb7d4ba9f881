"""Step sizes, and AID or ITD, for someone with a problem and no idea of either."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from optax import tree
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bilevel.batch import Batch
from bilevel.checks import check_count, prepare
from bilevel.loop.scan import warm_up
from bilevel.problem import Problem
from bilevel.solvers.aid import aid
from bilevel.solvers.base import Solver
from bilevel.solvers.itd import itd
from bilevel.solvers.rules import projected
from bilevel.theory.certificates import paper_aid, paper_itd, tight
from bilevel.theory.estimation.curvature import spectrum
from bilevel.theory.estimation.estimating import Estimated, estimate_at
from bilevel.theory.estimation.local import CG_STEPS, Local, local
from bilevel.theory.estimation.trial import slope
from bilevel.types import PyTree

TOLERATED_BIAS = 0.1  # of ‖∇Φ‖: up to here ITD's cheaper step is worth its bias
MOST_HALVINGS = 40
FLAT = 1e-6  # of the largest curvature: below this share the smallest cannot be told from zero


class StepSizes(NamedTuple):
    """Named like the arguments of `bl.aid`: `bl.aid(problem, *sizes)`, `bl.itd(problem, sizes.inner, sizes.outer)`."""

    inner: float  # α
    adjoint: float  # η
    outer: float  # β


@dataclass(frozen=True)
class Advice:
    """What [`advise`][bilevel.advise] found out at a point, and what it recommends."""

    estimated: Estimated
    certified: dict[str, StepSizes]  # by certificate; they hold if the estimates do; none if g is not convex
    practical: StepSizes
    damping: float  # added to ∇²_yy g wherever it was inverted; 0 if g is strongly convex at the points seen
    at: Local  # hypergradient, ITD's bias and the curvature of Φ at (x0, y after the warm-up)
    method: str  # "AID" or "ITD"
    recommendation: str
    projected: bool = False  # ‖∇Φ‖ is then the norm of the gradient mapping

    @property
    def bias_share(self) -> float:
        """ITD's bias as a share of the hypergradient's norm at the point."""
        return float(self.at.bias / max(float(self.at.hypergradient), np.finfo(float).tiny))

    def __rich__(self) -> Group:
        table = Table(title="step sizes", title_justify="left")
        for column in ("", "inner α", "adjoint η", "outer β"):
            table.add_column(column, justify="left" if not column else "right")
        rows = {f"certified, {name}": sizes for name, sizes in self.certified.items()} | {
            "practical": self.practical
        }
        for name, sizes in rows.items():
            table.add_row(name, *(f"{size:.4g}" for size in sizes))
        return Group(Text(self.recommendation), table, Text("\n".join(self._notes())))

    def _notes(self) -> list[str]:
        notes = [f"Constants {self.estimated}."]
        if self.certified:
            notes.append("Certified means: the bound holds if these estimates are the true constants.")
        what = "gradient mapping" if self.projected else "∇Φ"
        notes.append(
            f"At the point: ‖{what}‖ = {self.at.hypergradient:.4g}, ITD's bias {self.at.bias:.4g}, "
            f"curvature of Φ up to {self.at.smoothness:.4g}, ‖∇_y g‖ = {self.at.inner_gradient:.2g}; "
            f"the adjoint system was solved to a relative residual of {self.at.residual:.1e}."
        )
        return notes

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=100).print(self)
        return out.getvalue().rstrip()


def advise(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    data: Batch | None = None,
    *,
    steps: int = 10_000,
    infimum: float = 0.0,
    warmup: int = 100,
    trial: int = 100,
    iterations: int = 30,
    seed: int = 0,
    project: Callable[[PyTree], PyTree] | None = None,
) -> Advice:
    """Proposes step sizes and recommends AID or ITD from what the problem looks like at (x0, y0).

    Takes `warmup` gradient steps on y, estimates the constants before and after, and evaluates the hypergradient
    and ITD's bias where they end. The practical step sizes are α = η = 1/L_y with L_y the largest curvature of g in
    y, and β = αμ/L̂_Φ with L̂_Φ the curvature of Φ at the point: the inner variables lag behind x at the rate αμ
    per step and the adjoint does as well, and a loop of gain βL̂_Φ through two such lags is stable up to 2αμ.
    Curvature at one point may be misleading, so β is tried: halved until in `trial` steps of the method itself the
    estimate never changes by more than 2αμ/β times the step that x takes.

    Args:
        problem: the two objectives.
        x0: where x will start.
        y0: where y will start.
        data: all the data of both levels, or a representative batch.
        steps: how long the run is meant to be, for the certified β of ITD.
        infimum: a lower bound of f, for the certified β; losses are usually at least 0.
        warmup: gradient steps on y at x0 before looking.
        trial: steps for which a practical β must prove itself; 0 takes the first proposal untried.
        iterations: Lanczos steps per quantity.
        seed: of the random starting vectors; the same seed gives the same advice.
        project: the projection onto the set that x must stay in; run `bl.projected(practical.outer, project)`. ‖∇Φ‖ is
            then the gradient mapping's norm, ‖x − P(x − s∇Φ)‖/s with s = 1/L̂_Φ, and the trials are projected too.
    """
    if problem.prox is not None:
        raise ValueError(
            "advise measures smooth inner problems, and this one has a proximal map: take the inner step size 1/L of "
            "its smooth part, and find the others with bl.sweep"
        )
    steps, warmup = check_count(steps, "steps"), check_count(warmup, "warmup", least=0)
    trial = check_count(trial, "trial", least=0)
    iterations, seed = check_count(iterations, "iterations"), check_count(seed, "seed", least=0)
    x, y = prepare(problem, x0, y0, data)
    key = jax.random.key(seed)
    y_warm = problem.compiled(_descend, warmup, iterations)(x, y, data, key)
    if not np.isfinite(float(tree.norm(y_warm))):
        raise ValueError(
            "gradient descent on y from y0 diverges even with step size 1/L: start from another y0"
        )
    estimated = estimate_at(problem, [(x, y), (x, y_warm)], data, iterations, key)

    convex = estimated.mu_at_most > FLAT * estimated.inner_L_at_least
    damping = 0.0 if convex else 2 * max(-estimated.mu_at_most, FLAT * estimated.inner_L_at_least)
    mu, L = estimated.mu_at_most + damping, estimated.inner_L_at_least + damping
    alpha = 1 / L
    look = problem.compiled(_local, min(iterations, 8), project)
    at = jax.device_get(look(x, y_warm, data, alpha, damping, key))
    beta = alpha * mu / max(float(at.smoothness), np.finfo(float).tiny)
    proposed = StepSizes(alpha, alpha, min(beta, np.finfo(float).max))

    def make(sizes: StepSizes) -> Solver:
        inner, adjoint, outer = sizes
        outer = outer if project is None else projected(outer, project)
        return aid(problem, inner, adjoint, outer) if convex else itd(problem, inner, outer)

    gain = lambda sizes: sizes.outer * float(slope(make(sizes), trial, x, y_warm, data))
    practical = _tried(proposed, gain, 2 * alpha * mu) if trial else proposed
    certified = _certified(estimated, at, steps, infimum) if convex else {}
    method, recommendation = _recommend(estimated, at, alpha, damping)
    return Advice(estimated, certified, practical, damping, at, method, recommendation, project is not None)


def _descend(problem: Problem, warmup: int, iterations: int, x, y, data, key) -> PyTree:
    """`warmup` gradient steps on y with step size 1/L, L the largest curvature at the start."""
    L = spectrum(problem.oracles.linearise(x, y, data).hessian, y, key, iterations)[-1]
    solver = itd(problem, inner=1 / L, outer=1.0)
    return warm_up(solver, solver.init(x, y, data), data, steps=warmup).y


def _local(problem: Problem, steps: int, project, x, y, data, alpha, damping, key) -> Local:
    return local(problem, x, y, data, alpha, damping, key, steps, project)


def _tried(sizes: StepSizes, gain: Callable[[StepSizes], float], limit: float) -> StepSizes:
    """The proposed step sizes with β halved until the loop's gain over a trial run is within `limit`."""
    for _ in range(MOST_HALVINGS):
        if gain(sizes) <= limit:
            break
        sizes = sizes._replace(outer=sizes.outer / 2)
    return sizes


def _certified(estimated: Estimated, at: Local, steps: int, infimum: float) -> dict[str, StepSizes]:
    gap = float(at.value) - infimum
    if gap <= 0:
        raise ValueError(
            f"f = {float(at.value):g} at the point is not above infimum = {infimum:g}: pass infimum=, a number that f "
            "is never below"
        )
    k = estimated.assume()
    y_error = float(at.inner_gradient) / k.mu  # ‖y − y*‖ ≤ ‖∇_y g‖/μ
    betas = {
        "AID (Theorem 5.9)": paper_aid.aid(k).beta,
        "AID (tight)": tight.aid(k).best_beta(steps, gap, y_error),
        "ITD (Theorem 5.17)": paper_itd.itd(k).beta,
        "ITD (tight)": tight.itd(k).best_beta(steps, gap, y_error),
    }
    alpha = float(1 / k.L)
    return {name: StepSizes(alpha, alpha, float(beta)) for name, beta in betas.items()}


def _recommend(estimated: Estimated, at: Local, alpha: float, damping: float) -> tuple[str, str]:
    share = float(at.bias) / max(float(at.hypergradient), np.finfo(float).tiny)
    if damping > 0:
        return "ITD", (
            "Use ITD with the practical step sizes, or AID on a damped inner problem: g is not strongly convex in y "
            f"here (curvature {estimated.mu_at_most:.3g} was found), so y*(x) need not be unique, no certificate "
            f"applies, and AID's adjoint would grow by up to {1 + alpha * max(-estimated.mu_at_most, 0):.4g} per "
            f"step; adding ½·{damping:.3g}·‖y‖² to g repairs this near the point, and ITD's bias would then be "
            f"{share:.1%} of ‖∇Φ‖."
        )
    loose = (
        f" (the adjoint system was only solved to {float(at.residual):.1e} in {CG_STEPS} steps, so this is rough)"
        if at.residual > 1e-3
        else ""
    )
    kappa = estimated.inner_L_at_least / estimated.mu_at_most
    if share <= TOLERATED_BIAS:
        return "ITD", (
            f"Use ITD: its bias at this point is {share:.1%} of ‖∇Φ‖{loose}, and it takes one second-order product per "
            f"step where AID takes two (κ ≈ {kappa:.3g})."
        )
    return "AID", (
        f"Use AID: ITD's bias at this point is {share:.1%} of ‖∇Φ‖{loose} and would not go away with more steps, while "
        f"AID's error vanishes (κ ≈ {kappa:.3g})."
    )
