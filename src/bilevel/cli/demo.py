"""`bilevel demo`: AID and ITD on the paper's quadratic, compared with the closed-form answers."""

from typing import Annotated

import jax
import jax.numpy as jnp
import typer
from rich.console import Console
from rich.table import Table

import bilevel as bl
from bilevel.checks import MANY
from bilevel.cli.errors import fail
from bilevel.cli.screen import print_table
from bilevel.cli.signals import stoppable
from bilevel.theory.reals import LARGEST_KAPPA
from bilevel.words import shown


def demo(
    kappa: Annotated[
        float, typer.Option(help="Condition number L/μ of the inner problem, at least 1.")
    ] = 10.0,
    steps: Annotated[int, typer.Option(help="Iterations of each algorithm.")] = 50_000,
) -> None:
    """Run single-loop AID and ITD on the paper's two-dimensional problem, and print the closed-form limits."""
    if not 1 <= kappa < float("inf"):
        fail(f"--kappa must be a number of at least 1 (L ≥ μ always), not {kappa:g}: pass e.g. --kappa 10")
    if kappa > LARGEST_KAPPA:
        fail(f"--kappa must be at most {LARGEST_KAPPA:g}, not {kappa:g}: above it 1 − 1/κ is 1 in float64")
    if not 1 <= steps <= MANY:
        fail(f"--steps must be at least 1 and below 2**63, not {shown(steps)}: pass e.g. --steps 50000")
    taken: list[str] = []  # steps of each algorithm
    with stoppable(lambda: f"steps taken: {', '.join(taken) or 'none'}"), jax.enable_x64(True):
        _demo(kappa, steps, taken)


def _demo(kappa: float, steps: int, taken: list[str]) -> None:
    q = bl.problems.quadratic(kappa=kappa)
    x0 = jnp.ones(2)
    y0 = q.inner_solution(x0)
    alpha = 1 / q.L
    beta = 0.5 / (q.L * kappa**2)  # Φ here is L-smooth; the κ² leaves room for y and v to lag behind x
    table = Table()
    for heading in ("", "x", "its limit", "‖∇Φ(x)‖²", "its limit"):
        table.add_column(heading, justify="right" if heading else "left")
    show = lambda v: f"({v[0]:.3f}, {v[1]:.3f})"
    square = lambda x: f"{float(jnp.sum(q.hypergradient(x) ** 2)):.3e}"
    stopped = False
    for solver, limit in (
        (bl.aid(q.problem, inner=alpha, adjoint=alpha, outer=beta), q.solution),
        (bl.itd(q.problem, inner=alpha, outer=beta), q.itd_limit(alpha)),
    ):
        try:
            result = bl.run(solver, x0, y0, steps=steps, progress=True)
        except KeyboardInterrupt:  # before the first step
            stopped = True
            break
        table.add_row(solver.name, show(result.x), show(limit), square(result.x), square(limit))
        taken.append(f"{solver.name} {result.steps:,}")
        if stopped := result.status.code == "interrupted":
            break
    took = f"stopped: {', '.join(taken) or 'none'} of {steps:,} steps" if stopped else f"{steps:,} steps"
    table.title = f"The paper's quadratic at κ = {kappa:g}, {took}"
    print_table(table)
    if stopped:
        raise KeyboardInterrupt
    Console().print(
        "AID finds the stationary point of Φ. One-step ITD cannot: its estimator is biased, and at its limit "
        "‖∇Φ‖² = M²(κ−1)², the inherent error that the paper proves to be of order κ²."
    )
