"""Every lemma, theorem and bound on runs of the real solvers, over random problems with known valid constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel import theory
from bilevel.problems import random_quadratic, ridge_logistic

pytestmark = pytest.mark.slow

STEPS = 100
# Which certificate the step sizes come from. With "fast", β is none's and only lemmas that allow any β are judged; with
# "short", α and η are below 1/L. "star" has α = η = 2/(L + μ), beyond what the paper's lemmas allow.
CHOICES = ("paper", "prior", "sharp", "tight", "star", "fast", "short")
STAR = ("star: inner", "star: adjoint", "star: hypergradient", "star: bound", "star: descent")
# What each choice of step sizes must at least have judged, so that no row passes by never applying.
AID_JUDGED = {
    "paper": (
        "Lemma 5.6: squared",
        "Lemma 5.8",
        "Theorem 5.9",
        "sharp: bound",
        "tight: bound",
        "star: bound",
    ),
    "prior": ("Theorem 5.11",),
    "sharp": ("sharp: bound", "tight: bound"),
    "tight": ("tight: bound",),
    "star": STAR,
    "fast": ("Lemma 5.1b", "Lemma 5.5", "tight: inner", "tight: adjoint", "sharp: adjoint", "Assumption 4.5"),
    "short": ("Lemma 5.1a", "Lemma 5.1b", "Lemma 5.3a", "Lemma 5.3b", "Lemma 5.5", "Lemma A.1: "),
}
ITD_JUDGED = {
    "paper": (
        "Lemma 5.15a",
        "Lemma 5.15b",
        "Lemma 5.16",
        "Theorem 5.17",
        "sharp: bound",
        "tight: bound",
        "star: bound",
    ),
    "prior": ("earlier bound",),
    "sharp": ("sharp: bound",),
    "tight": ("tight: bound",),
    "star": ("star: inner", "star: hypergradient", "star: bound", "star: descent"),
    "fast": ("Lemma 5.12", "Lemma 5.13", "sharp: hypergradient", "tight: inner", "tight: hypergradient"),
    "short": ("Lemma 5.12", "Lemma 5.13", "Lemma B.1", "Lemma A.1: "),
}


def aid_steps(k, choice, gap, y_error):
    """α, η and β of a certificate (its best β for this start), or of none."""
    if choice in ("fast", "short"):
        share = 1.0 if choice == "fast" else 0.6
        return {"alpha": share / k.L, "eta": share / k.L, "beta": 0.3 / (k.L * k.kappa**2)}
    sizes = (theory if choice == "paper" else getattr(theory, choice)).aid(k).step_sizes(STEPS, gap, y_error)
    return {"alpha": sizes.inner, "eta": sizes.adjoint, "beta": float(sizes.outer)}


def itd_steps(k, choice, gap, y_error):
    if choice in ("fast", "short"):
        return {"alpha": (1.0 if choice == "fast" else 0.6) / k.L, "beta": 0.3 / (k.L * k.kappa)}
    make = (theory if choice == "paper" else getattr(theory, choice)).itd
    radius = () if choice in ("tight", "star") else (max(theory.itd(k).R_y_min, y_error),)
    sizes = make(k, *radius).step_sizes(STEPS, gap, y_error)
    return {"alpha": sizes.inner, "beta": float(sizes.outer)}


def make(problem, steps):
    if "eta" in steps:
        return bl.aid(problem, inner=steps["alpha"], adjoint=steps["eta"], outer=steps["beta"])
    return bl.itd(problem, inner=steps["alpha"], outer=steps["beta"])


def measure_all(problem, steps, x0, y0, data):
    """One compiled call for all instances: step sizes, starts and data stacked along the first axis."""
    stack = lambda trees: jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(a, float) for a in leaves]), *trees
    )
    one = lambda steps, x, y, data: theory.measure(make(problem, steps), x, y, STEPS, data)
    runs = jax.device_get(jax.jit(jax.vmap(one))(stack(steps), stack(x0), stack(y0), stack(data)))
    return [jax.tree.map(lambda a, i=i: a[i], runs) for i in range(len(steps))]


def assert_all_hold(problem, runs, constants, steps, choices, judged):
    for i, (run, k, sizes, choice) in enumerate(zip(runs, constants, steps, choices, strict=True)):
        report = theory.judge(run, make(problem, sizes), k)
        assert report.ok, f"instance {i} ({choice}): {report}"
        assert report.reference_residual < 1e-12 * (1 + k.L * run.sizes["y"].max() + k.M)
        for name in judged[choice]:
            assert report[name].verdict is theory.Verdict.HOLDS, f"instance {i} ({choice}): {report[name]}"


def quadratics(seed, count):
    """Instances with μ, κ and M over orders of magnitude, the condition number one among them, and starts near y*."""
    rng = np.random.default_rng(seed)
    instances = []
    for i in range(count):
        kappa = 1.0 if i == 0 else rng.uniform(1.0, 12.0)
        p = random_quadratic(
            seed * 1000 + i, mu=10 ** rng.uniform(-1, 0.5), kappa=kappa, M=10 ** rng.uniform(-1, 1)
        )
        x0 = jnp.asarray(rng.normal(size=3))
        y0 = p.inner_solution(x0) + rng.uniform(0, 0.5) * rng.normal(size=3)
        instances.append((p, theory.Constants(p.mu, p.L, p.M, p.rho), x0, y0))
    return instances


@pytest.mark.parametrize("method", ["AID", "ITD"])
def test_nothing_is_violated_on_random_quadratics(method):
    instances = quadratics(seed=1 if method == "AID" else 2, count=84)
    choices = [CHOICES[i % 7] for i in range(len(instances))]
    steps = []
    for (p, k, x0, y0), choice in zip(instances, choices, strict=True):
        gap = float(p.problem.f(x0, p.inner_solution(x0), p.data))  # f ≥ 0
        y_error = float(jnp.linalg.norm(y0 - p.inner_solution(x0)))
        steps.append((aid_steps if method == "AID" else itd_steps)(k, choice, gap, y_error))
    _, constants, x0, y0 = zip(*instances, strict=True)
    problem = instances[0][0].problem  # they differ in their data only
    runs = measure_all(problem, steps, x0, y0, [p.data for p, *_ in instances])
    assert_all_hold(problem, runs, constants, steps, choices, AID_JUDGED if method == "AID" else ITD_JUDGED)


@pytest.mark.parametrize("method", ["AID", "ITD"])
def test_nothing_is_violated_on_ridge_logistic_regression(method):
    """ρ > 0, and constants that are derived rather than prescribed."""
    rng = np.random.default_rng(3)
    instances, choices, steps, x0, y0 = [], [], [], [], []
    for i in range(42):
        p = ridge_logistic(features=3, train=16, valid=16, seed=100 + i, low=0.5, high=1.5)
        start = jnp.asarray(rng.normal(size=3))
        # β is far too small for x to double its distance from zero, and the region is checked below.
        k = p.constants(x_radius=2 * float(jnp.linalg.norm(start)))
        gap = float(p.problem.f(start, jnp.zeros(3), p.data))  # f ≥ 0; y changes it by less than it is
        y_start = jnp.asarray(rng.normal(size=3)) * rng.uniform(0, 0.3) * p.inner_radius
        choice = CHOICES[i % 7]
        y_error = 2 * p.inner_radius
        instances.append((p, k))
        choices.append(choice)
        steps.append((aid_steps if method == "AID" else itd_steps)(k, choice, gap, y_error))
        x0.append(start)
        y0.append(y_start)
    problem = instances[0][0].problem  # they differ in their data only
    runs = measure_all(problem, steps, x0, y0, [p.data for p, _ in instances])
    for (p, k), run, start in zip(instances, runs, x0, strict=True):
        assert run.sizes["x"].max() <= 2 * float(jnp.linalg.norm(start))
        assert (run.sizes["y"] + run.y_error).max() <= 2 * p.inner_radius
        assert k.rho > 0
    assert_all_hold(
        problem,
        runs,
        [k for _, k in instances],
        steps,
        choices,
        AID_JUDGED if method == "AID" else ITD_JUDGED,
    )
