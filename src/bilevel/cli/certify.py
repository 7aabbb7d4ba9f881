"""`bilevel certify`: the earlier, the paper's and the exact-gain analyses side by side."""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bilevel import theory
from bilevel.cli.errors import fail

ROWS = {
    "alpha": "inner step α",
    "eta": "adjoint step η",
    "beta": "outer step β",
    "binding": "β limited by",
    "warmup_steps": "warm-up steps",
    "bound": "bound, K = {steps:,}",
    "inherent_error": "inherent error",
}
ANALYSES = ("earlier", "paper", "sharp", "tight")


def _real(text: str | float | int) -> float:  # typer sends defaults through the parser, too
    # A parser that ends the program itself keeps the complaint to one line; click would print a usage screen.
    try:
        return float(text)
    except ValueError:
        fail(f"{text!r} is not a number; write it like 0.1 or 1e-3")


def certify(
    mu: Annotated[float, typer.Option("--mu", parser=_real, help="Strong convexity of g in y.")],
    L: Annotated[float, typer.Option("--L", parser=_real, help="Lipschitz constant of the gradients.")],
    M: Annotated[float, typer.Option("--M", parser=_real, help="Bound on the gradient norm of f.")],
    rho: Annotated[float, typer.Option("--rho", parser=_real, help="Lipschitz constant of g's Hessian.")],
    steps: Annotated[float, typer.Option("--steps", parser=_real, help="Outer iterations K.")] = 10_000,
    gap: Annotated[float, typer.Option("--gap", parser=_real, help="Φ(x₀) − inf Φ.")] = 1.0,
    y_distance: Annotated[
        float, typer.Option("--y-distance", parser=_real, help="Distance of the raw y₀ from y*(x₀).")
    ] = 0.0,
    c_y: Annotated[
        float, typer.Option("--c-y", parser=_real, help="AID warms y₀ up to distance c_y·μ.")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Certified step sizes and convergence bounds for single-loop AID and ITD, by four analyses.

    The run starts from v₀ = 0 and a y₀ warmed up by gradient descent at x₀.
    """
    try:
        report = certificates(theory.Constants(mu, L, M, rho), steps, gap, y_distance, c_y)
    except ValueError as error:
        fail(str(error))
    if as_json:
        typer.echo(json.dumps(report, indent=2, allow_nan=False))
    else:
        _show(report)


def register(app: typer.Typer) -> None:
    app.command("certify")(certify)


def certificates(
    constants: theory.Constants, steps: float, gap: float, y_distance: float = 0.0, c_y: float = 1.0
) -> dict[str, Any]:
    """Everything the command prints, as plain Python values; all analyses start from the same errors."""
    return {
        "constants": {
            "mu": constants.mu,
            "L": constants.L,
            "M": constants.M,
            "rho": constants.rho,
            "kappa": constants.kappa,
            "L_Phi": constants.L_Phi,
        },
        "run": {"steps": int(steps) if steps == steps // 1 else steps, "gap": gap, "y_distance": y_distance},
        "aid": _aid(constants, steps, gap, y_distance, c_y),
        "itd": _itd(constants, steps, gap, y_distance),
        "itd_lower_bound": float(theory.lower_bound(constants).value),
    }


def _aid(constants: theory.Constants, steps: float, gap: float, y_distance: float, c_y: float) -> dict:
    earlier, paper = theory.prior.aid(constants), theory.aid(constants)
    sharp, tight = theory.sharp.aid(constants), theory.tight.aid(constants)
    warmup = paper.warmup_steps(y_distance, c_y)
    # Warm-up reaches c_y·μ and the first update of y contracts once more.
    a0 = (1 - 1 / constants.kappa) * min(y_distance, c_y * constants.mu)
    E0 = sharp.b0_bound + paper.C1 * a0
    common = {"alpha": paper.alpha, "warmup_steps": warmup, "inherent_error": 0.0}
    table = {
        "earlier": {**common, **_step(earlier), "eta": earlier.eta, "bound": earlier.bound(steps, gap, a0)},
        "paper": {**common, **_step(paper), "eta": paper.eta, "bound": paper.bound(steps, gap, E0)},
    }
    for name, exact in {"sharp": sharp, "tight": tight}.items():
        beta = exact.best_beta(gap, a0)
        bound = exact.bound(steps, gap, a0, beta=beta)
        limit = _limit(exact, beta)
        table[name] = {**common, "beta": beta, "binding": limit, "eta": exact.eta, "bound": bound}
    return _plain(table)


def _itd(constants: theory.Constants, steps: float, gap: float, y_distance: float) -> dict:
    earlier, paper = theory.prior.itd(constants), theory.itd(constants)
    sharp, tight = theory.sharp.itd(constants), theory.tight.itd(constants)
    warmup = paper.warmup_steps(y_distance)
    s0 = min(y_distance, paper.R_y)
    a0 = (1 - 1 / constants.kappa) * s0
    common = {"alpha": paper.alpha, "warmup_steps": warmup}
    table = {
        name: {
            **common,
            **_step(certificate),
            "bound": certificate.bound(steps, gap, a0),
            "inherent_error": certificate.inherent_error,
        }
        for name, certificate in {"earlier": earlier, "paper": paper}.items()
    }
    for name, exact, start in (("sharp", sharp, a0), ("tight", tight, s0)):
        beta = exact.best_beta(steps, gap, start)
        table[name] = {
            **common,
            "beta": beta,
            "binding": _limit(exact, beta),
            "bound": exact.bound(steps, gap, start, beta=beta),
            "inherent_error": exact.inherent_error,
        }
    return _plain(table)


def _step(certificate) -> dict[str, Any]:
    return {"beta": certificate.beta, "binding": certificate.binding}


def _limit(exact: theory.sharp.SharpAID | theory.sharp.SharpITD, beta) -> str:
    if beta < exact.system.beta_cap * (1 - 1e-6):
        return "lowest bound"
    return "smoothness" if np.isclose(beta * exact.constants.L_Phi, 1) else "radius"


def _plain(table: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """NumPy scalars as Python ones, so that JSON and formatting see numbers."""
    python = lambda value: value.item() if isinstance(value, np.generic) else value
    return {name: {key: python(value) for key, value in column.items()} for name, column in table.items()}


def _show(report: dict[str, Any]) -> None:
    console = Console()
    k, run = report["constants"], report["run"]
    console.print(
        f"μ = {k['mu']:g}, L = {k['L']:g}, M = {k['M']:g}, ρ = {k['rho']:g}: "
        f"κ = {k['kappa']:.4g}, L_Φ = {k['L_Phi']:.4g}; Φ(x₀) − inf Φ = {run['gap']:g}"
    )
    for method in ("aid", "itd"):
        table = Table(title=f"Single-loop {method.upper()}")
        table.add_column("")
        for name in ANALYSES:
            table.add_column(name, justify="right")
        for key, label in ROWS.items():
            cells = [report[method][name].get(key) for name in ANALYSES]
            if cells[0] is not None:
                table.add_row(label.format(steps=run["steps"]), *(_cell(cell) for cell in cells))
        console.print(table)
    console.print(
        f"Bounds are on (1/K) Σ ‖∇Φ(x_k)‖². No analysis of ITD can do better than {_cell(report['itd_lower_bound'])} "
        "as K grows (its worst case)."
    )


def _cell(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
