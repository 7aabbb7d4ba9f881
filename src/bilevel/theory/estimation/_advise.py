"""`advise`: step sizes, and AID or ITD, for a problem with unknown constants."""

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
from bilevel.theory.estimation.advice import Advice, explain, recommend, recommend_nonconvex
from bilevel.theory.estimation.estimates import largest_beta, sampled_certificates
from bilevel.theory.estimation.observations import Observations, places
from bilevel.theory.estimation.stationarity import measure_stationarity
from bilevel.theory.estimation.trial_runs import (
    BetaTrial,
    examine_start,
    follow,
    halve_beta,
    is_convex,
    largest_slope,
)
from bilevel.types import PyTree

FOLLOWED = {"AID": ("AID", "SOBA"), "ITD": ("ITD",)}  # the runs, and the certificates whose β they use


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
    """Propose step sizes and recommend AID or ITD, from observations along a run from (x0, y0).

    Take `warmup` gradient steps on y, then Newton steps to y*(x0), and estimate the constants on the way.
    Evaluate the hypergradient and ITD's bias at the end. The practical step sizes are α = η = 1/L_y and β =
    αμ/L̂_Φ. L_y is the largest curvature of g in y, and L̂_Φ is the curvature of Φ at the start. y and v lag
    behind x at the rate αμ per step, and a loop of gain βL̂_Φ through two such lags is stable up to 2αμ.
    Curvature at one point may be misleading, so β is halved until in `trial` steps of the method itself, from
    y*(x0), the estimate never changes by more than 2αμ/β times the step of x.

    AID and ITD then run from (x0, y0), with the practical β, or with the largest certified β for the constants
    observed so far, if that is larger. They run as far as the latter would get in `steps` steps (β times the
    number of steps counts), and at least `trial` steps. The constants are estimated again along both runs. The
    sampled step sizes and bounds belong to certificates for the worst observed constants.

    Args:
        problem: the two objectives.
        x0: the first x.
        y0: the first y.
        data: all the data of both levels, or a representative batch.
        steps: the planned length of the run, for the sampled step sizes and their bounds.
        infimum: a lower bound of f, for the same; losses are usually at least 0.
        warmup: gradient steps on y at x0 before the first observation.
        trial: steps of the test of a practical β; 0 takes the first proposal untested, without certificates, because
            no run was observed.
        iterations: Lanczos steps per quantity.
        seed: seed of the random starting vectors; the same seed gives the same advice.
        project: the projection onto the set that x must stay in; run `bl.projected(practical.outer, project)`. ‖∇Φ‖ is
            then the gradient mapping's norm, ‖x − P(x − s∇Φ)‖/s with s = 1/L̂_Φ, and the runs are projected too. No
            certificate here covers a projected x.
    """
    check_problem(problem)
    check_finite(infimum, "infimum")
    if problem.prox is not None:
        raise ValueError(
            "advise measures smooth inner problems, but this one has a proximal map: use the inner step size 1/L of "
            "its smooth part, and find the others with bl.sweep"
        )
    if "state" in problem.g.extras:
        raise ValueError(
            "advise measures objectives that stay the same, but the inner objective returns a new state of the model, "
            "such as statistics of batch norm: keep that state fixed in an objective without `state`, or use bl.sweep"
        )
    steps, warmup = check_count(steps, "steps"), check_count(warmup, "warmup", least=0)
    trial = check_count(trial, "trial", least=0)
    iterations, seed = check_count(iterations, "iterations"), int(check_seed(seed))
    data = as_arrays(data, "data")
    x, y = prepare(problem, x0, y0, data)
    check_known(x0=x, y0=y, data=data)
    if project is not None:
        projected(1.0, project).init(x)
    observations = Observations(problem, data, iterations, jax.random.key(seed))
    start = examine_start(observations, x, y, warmup, project)
    at, alpha = start.at, start.alpha

    def make(method: str, beta: float) -> Solver:
        outer = beta if project is None else projected(beta, project)
        if method == "AID":
            return aid(problem, inner=alpha, adjoint=alpha, outer=outer)
        return itd(problem, inner=alpha, outer=outer)

    main = "AID" if start.convex else "ITD"
    slope = lambda beta: make(main, beta).compiled(largest_slope, trial)(x, start.star.y, data)
    gain = lambda beta: beta * float(slope(beta))
    untried = BetaTrial(start.proposal, 0, False)
    tried = halve_beta(start.proposal, gain, 2 * alpha * start.mu) if trial else untried

    runs = {}
    for method, certified in FOLLOWED.items() if start.convex and tried.passed else ():
        largest = largest_beta(observations.estimated, certified) if project is None else 0.0
        length = lambda beta, largest=largest: max(trial, math.ceil(min(largest / beta, 1.0) * steps))
        run = follow(partial(make, method), max(tried.beta, largest), length, x, y, data, 1 / alpha)
        runs |= {method: run} if run.seen else {}
    observations.add([place for run in runs.values() for moment in run.seen for place in places(*moment)])

    estimated = observations.estimated
    final = {}
    if start.star.done and tried.passed and project is None and runs and is_convex(estimated):
        known = [method for followed in runs for method in FOLLOWED[followed]]
        final = sampled_certificates(estimated, start.errors(y, infimum), steps, known)
    measured = problem.compiled(measure_stationarity, 0, project)
    measure = lambda x, _, star: jax.device_get(measured(x, star.y, data, alpha, 0.0, None, at.smoothness))
    along = [measure(*moment) for moment in runs["AID"].seen] if "AID" in runs else []
    ends = {method: measure(*run.seen[-1]) for method, run in runs.items()}
    if start.convex:
        method, recommendation = recommend(start, [at, *along], ends, runs)
    else:
        method, recommendation = recommend_nonconvex(start, estimated)
    inner = min(alpha, 1 / (estimated.L_yy_at_least + start.damping))
    return Advice(
        estimated=estimated,
        sampled=final,
        practical=StepSizes(inner, inner, min(tried.beta, runs["AID"].beta if "AID" in runs else tried.beta)),
        tried=tried.passed,
        damping=start.damping,
        at=at,
        along=tuple(along),
        method=method,
        recommendation=recommendation,
        notes=explain(start, tried, trial, runs, estimated, final, infimum, project is not None),
        projected=project is not None,
    )
