"""`bilevel certify`: every analysis of AID, ITD and SOBA side by side."""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bilevel import theory
from bilevel.cli.errors import fail
from bilevel.cli.screen import print_table

ROWS = {
    "alpha": "inner step α",
    "eta": "adjoint step η",
    "beta": "outer step β",
    "binding": "β limited by",
    "warmup_steps": "warm-up steps",
    "bound": "bound",
    "inherent_error": "inherent error",
    "lower_bound": "worst case",
}
METHODS = ("aid", "itd", "soba")


def _real(text: str | float | int) -> float:  # typer parses defaults too
    # Exit here with one line: click would print a usage screen.
    try:
        return float(text)
    except ValueError:
        fail(f"{text!r} is not a number; write it like 0.1 or 1e-3")


def number(help: str, *names: str) -> Any:
    return typer.Option(*names, parser=_real, help=help)


def certify(
    mu: Annotated[float, number("Strong convexity of g in y.")],
    L: Annotated[float, number("Lipschitz constant of the gradients.", "--L")],
    M: Annotated[float, number("Bound on the gradient norm of f.", "--M")],
    rho: Annotated[float, number("Lipschitz constant of g's Hessian.")],
    steps: Annotated[float, number("Outer iterations K.")] = 10_000,
    gap: Annotated[float, number("Φ(x₀) − inf Φ.")] = 1.0,
    y_distance: Annotated[float, number("Distance of the raw y₀ from y*(x₀).")] = 0.0,
    c_y: Annotated[float, number("AID warms y₀ up to distance c_y·μ.")] = 1.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of a table (null for infinity).")
    ] = False,
) -> None:
    """Print certified step sizes and convergence bounds of single-loop AID, ITD and SOBA, by every analysis.

    The run starts from v₀ = 0 and a y₀ warmed up by gradient descent at x₀.
    """
    values = f"mu = {mu:g}, L = {L:g}, M = {M:g}, rho = {rho:g}, gap = {gap:g}"
    units = f"with {values}: measure x, y, f or g in other units"
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            report = certificates(theory.Constants(mu, L, M, rho), steps, gap, y_distance, c_y)
    except ValueError as error:
        fail(str(error))
    except (OverflowError, ZeroDivisionError):
        fail(f"a number is out of the range of float64 {units}")
    if unknown := _first_unbounded(report):
        fail(f"{unknown} is out of the range of float64 {units}")
    if as_json:
        typer.echo(json.dumps(_finite(report), indent=2, allow_nan=False))
    else:
        _show(report)


def certificates(
    constants: theory.Constants, steps: float, gap: float, y_distance: float = 0.0, c_y: float = 1.0
) -> dict[str, Any]:
    """Return everything that the command prints, as plain Python values, from the same initial errors."""
    aid, itd = theory.aid(constants), theory.itd(constants)
    at_aid = min(y_distance, c_y * constants.mu), aid.warmup_steps(y_distance, c_y)
    # ITD's theorem needs y₀ within R_y of y*(x₀).
    at_itd = (min(y_distance, itd.R_y), itd.warmup_steps(y_distance)) if itd.R_y > 0 else at_aid
    starts = {"AID": at_aid, "ITD": at_itd, "SOBA": at_aid}
    fields = {name: getattr(constants, name) for name in ("mu", "L", "M", "rho", "kappa")}
    return {
        "constants": {**fields, "L_Phi": constants.L_Phi_blockwise},
        "run": {"steps": int(steps) if steps == steps // 1 else steps, "gap": gap, "y_distance": y_distance},
        **{
            method.lower(): {
                name: _column(certificate, steps, gap, *starts[method])
                for name, certificate in theory.analyses(constants, method).items()
            }
            for method in starts
        },
        "itd_lower_bound": float(theory.lower_bound(constants).value),  # with the paper's α = 1/L
    }


def _column(
    certificate: theory.Certificate, steps: float, gap: float, y_error: float, warmup: int
) -> dict[str, Any]:
    beta = certificate.best_beta(steps, gap, y_error)
    inside = beta < certificate.beta_max * (1 - 1e-6)
    answers = {
        "alpha": certificate.alpha,
        "eta": certificate.eta,
        "beta": beta,
        "binding": "lowest bound" if inside else certificate.binding,
        "warmup_steps": warmup,
        "bound": certificate.bound(steps, gap, y_error, beta=beta),
        "inherent_error": certificate.inherent_error,
    }
    if certificate.method == "ITD":  # the error that remains with this α on the worst problem
        answers["lower_bound"] = float(theory.lower_bound(certificate.constants, certificate.alpha).value)
    python = lambda value: value.item() if isinstance(value, np.generic) else value  # for JSON
    return {name: python(value) for name, value in answers.items() if value is not None}


def _first_unbounded(report: dict[str, Any]) -> str:
    """Return the first infinite step size or NaN, or ""."""
    for method in METHODS:
        for name, column in report[method].items():
            for key, value in column.items():
                size = key in ("alpha", "eta", "beta")
                if isinstance(value, float) and (np.isnan(value) or (size and np.isinf(value))):
                    return f"the {ROWS[key]} of {method.upper()} by {name}"
    return ""


def _finite(value: Any) -> Any:
    """Replace infinity, which JSON lacks, by null: the analysis has no such bound."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _show(report: dict[str, Any]) -> None:
    console = Console()
    k, run = report["constants"], report["run"]
    console.print(
        f"μ = {k['mu']:g}, L = {k['L']:g}, M = {k['M']:g}, ρ = {k['rho']:g}: "
        f"κ = {k['kappa']:.4g}, L_Φ = {k['L_Phi']:.4g}; Φ(x₀) − inf Φ = {run['gap']:g}"
    )
    for method in METHODS:
        table = Table(title=f"Single-loop {method.upper()}, K = {run['steps']:,}")
        table.add_column("", no_wrap=True)
        for name in report[method]:
            table.add_column(name, justify="right")
        for key, label in ROWS.items():
            cells = [column.get(key) for column in report[method].values()]
            if cells[0] is not None:
                table.add_row(label, *(_cell(cell) for cell in cells))
        print_table(table)
    console.print(
        "Bounds are on (1/K) Σ ‖∇Φ(x_k)‖². The worst case of ITD is the error that one problem keeps with this α "
        "as K grows: no analysis can have a smaller inherent error."
    )


def _cell(value: float | int | str) -> str:
    if isinstance(value, float) and np.isinf(value):
        return "none"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
