"""Step sizes, and AID or ITD, for someone with a problem and no idea of either."""

import math
from collections.abc import Callable
from functools import partial

import jax

from bilevel.arrays import as_arrays
from bilevel.batch import Batch
from bilevel.checks import check_count, check_finite, check_known, check_problem, check_seed, prepare
from bilevel.checks.derivatives import explained
from bilevel.problem import Problem
from bilevel.solvers.algorithms.aid import aid
from bilevel.solvers.algorithms.itd import itd
from bilevel.solvers.base import Solver
from bilevel.solvers.rules import projected
from bilevel.theory.certificates.certificate import StepSizes
from bilevel.theory.estimation.advice import Advice
from bilevel.theory.estimation.explaining import explain
from bilevel.theory.estimation.exploring import explored
from bilevel.theory.estimation.local import Local, local
from bilevel.theory.estimation.recommending import recommend, without_convexity
from bilevel.theory.estimation.sampling import Start, largest_beta, sampled
from bilevel.theory.estimation.starting import Beginning, begin, is_convex
from bilevel.theory.estimation.survey import Survey
from bilevel.theory.estimation.trees import distance
from bilevel.theory.estimation.trial import Tried, halved, slope
from bilevel.types import PyTree

FOLLOWED = {"AID": ("AID", "SOBA"), "ITD": ("ITD",)}  # runs that are looked at, and for whose certificates


@explained
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
    """Proposes step sizes and recommends AID or ITD from what the problem looks like along a run from (x0, y0).

    Takes `warmup` gradient steps on y, then Newton steps until y is y*(x0), estimates the constants on the way, and
    evaluates the hypergradient and ITD's bias where they end. The practical step sizes are α = η = 1/L_y with L_y the
    largest curvature of g in y, and β = αμ/L̂_Φ with L̂_Φ the curvature of Φ at the start: the inner variables lag
    behind x at the rate αμ per step and the adjoint does as well, and a loop of gain βL̂_Φ through two such lags is
    stable up to 2αμ. Curvature at one point may be misleading, so β is tried: halved until in `trial` steps of the
    method itself, from y*(x0), the estimate never changes by more than 2αμ/β times the step that x takes.

    AID and ITD then run from (x0, y0), with the practical β or with the largest that a certificate allows for the
    constants seen so far, if that is larger: as far as the latter would get in `steps` steps (β times the number of
    steps counts), and `trial` steps at least. The constants are estimated again along both, and the sampled step sizes
    and bounds are those of certificates for the worst constants seen.

    Args:
        problem: the two objectives.
        x0: where x will start.
        y0: where y will start.
        data: all the data of both levels, or a representative batch.
        steps: how long the run is meant to be, for the sampled step sizes and their bounds.
        infimum: a lower bound of f, for the same; losses are usually at least 0.
        warmup: gradient steps on y at x0 before looking.
        trial: steps for which a practical β must prove itself; 0 takes the first proposal untried, and no certificate
            is offered because no run was looked at.
        iterations: Lanczos steps per quantity.
        seed: of the random starting vectors; the same seed gives the same advice.
        project: the projection onto the set that x must stay in; run `bl.projected(practical.outer, project)`. ‖∇Φ‖ is
            then the gradient mapping's norm, ‖x − P(x − s∇Φ)‖/s with s = 1/L̂_Φ, and the runs are projected too. No
            certificate here covers a projected x.
    """
    check_problem(problem)
    check_finite(infimum, "infimum")
    if problem.prox is not None:
        raise ValueError(
            "advise measures smooth inner problems, and this one has a proximal map: take the inner step size 1/L of "
            "its smooth part, and find the others with bl.sweep"
        )
    steps, warmup = check_count(steps, "steps"), check_count(warmup, "warmup", least=0)
    trial = check_count(trial, "trial", least=0)
    iterations, seed = check_count(iterations, "iterations"), int(check_seed(seed))
    data = as_arrays(data, "data")
    x, y = prepare(problem, x0, y0, data)
    check_known(x0=x, y0=y, data=data)
    if project is not None:
        projected(1.0, project).init(x)
    survey = Survey(problem, data, iterations, jax.random.key(seed))
    here = begin(survey, x, y, warmup, project)
    at, alpha = here.at, here.alpha

    def make(method: str, beta: float) -> Solver:
        outer = beta if project is None else projected(beta, project)
        return (
            aid(problem, inner=alpha, adjoint=alpha, outer=outer)
            if method == "AID"
            else itd(problem, inner=alpha, outer=outer)
        )

    main = "AID" if here.convex else "ITD"
    gain = lambda beta: beta * float(slope(make(main, beta), trial, x, here.star.y, data))
    tried = halved(here.proposal, gain, 2 * alpha * here.mu) if trial else Tried(here.proposal, 0, False)

    runs = {}
    for method, certified in FOLLOWED.items() if here.convex and tried.passed else ():
        largest = largest_beta(survey.estimated, certified) if project is None else 0.0
        length = lambda beta, largest=largest: max(trial, math.ceil(min(largest / beta, 1.0) * steps))
        run = explored(partial(make, method), max(tried.beta, largest), length, x, y, data, 1 / alpha)
        runs |= {method: run} if run.seen else {}
    survey.look([place for run in runs.values() for place in run.places])

    estimated = survey.estimated
    final = {}
    if here.star.done and tried.passed and project is None and runs and is_convex(estimated):
        known = [method for followed in runs for method in FOLLOWED[followed]]
        final = sampled(estimated, _start(here, y, infimum), steps, known)
    look = lambda x, _, star: jax.device_get(
        problem.compiled(_stationarity, project)(x, star.y, data, alpha, at.smoothness)
    )
    along = [look(*moment) for moment in runs["AID"].seen] if "AID" in runs else []
    ends = {method: look(*run.seen[-1]) for method, run in runs.items()}
    if here.convex:
        method, recommendation = recommend(here, [at, *along], ends, runs)
    else:
        method, recommendation = without_convexity(here, estimated)
    inner = min(alpha, 1 / (estimated.L_yy_at_least + here.damping))
    return Advice(
        estimated=estimated,
        sampled=final,
        practical=StepSizes(inner, inner, min(tried.beta, runs["AID"].beta if "AID" in runs else tried.beta)),
        tried=tried.passed,
        damping=here.damping,
        at=at,
        along=tuple(along),
        method=method,
        recommendation=recommendation,
        notes=explain(here, tried, trial, runs, estimated, final, infimum, project is not None),
        projected=project is not None,
    )


def _start(here: Beginning, y: PyTree, infimum: float) -> Start:
    """What certificates ask of the start, from y*(x0) and v*(x0)."""
    value = float(here.at.value)
    if value <= infimum:
        raise ValueError(
            f"Φ(x0) = {value:g} is not above infimum = {infimum:g}: pass infimum=, a number that f is never below"
        )
    y_error = distance(y, here.star.y) + float(here.star.gradient) / here.mu
    return Start(value - infimum, y_error, float(here.at.adjoint) if here.at.residual < 1e-8 else None)


def _stationarity(problem: Problem, project, x, y, data, alpha, smoothness) -> Local:
    return local(problem, x, y, data, alpha, 0.0, None, 0, project, smoothness)
