"""Plots of certified bounds along the steps, with the measured values of a run."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from bilevel.checks import as_number, check_count, check_kind
from bilevel.plot.numbers import as_numbers
from bilevel.plot.style import draw_line, look, panel
from bilevel.theory.certificates.certificate import Certificate
from bilevel.theory.reals import Real
from bilevel.words import shown

POINTS = 200


def certificate(
    certificates: Certificate | Mapping[str, Certificate],
    *,
    steps: int,
    gap: Real,
    y_error: Real = 0.0,
    v_error: Real | None = None,
    beta: Real | None = None,
    measured: Any = None,
    ax: Any = None,
) -> Axes:
    """Plot the bound on the mean of ‖∇Φ(x_k)‖² over the first K steps, for every K up to `steps`.

    Args:
        certificates: a certificate, or several by their name in the legend.
        steps: the largest number of steps.
        gap: Φ(x₀) − inf Φ.
        y_error: ‖y₀ − y*(x₀)‖.
        v_error: ‖v₀ − v*(x₀)‖; default: an upper bound for v₀ = 0.
        beta: the outer step size; default: the best for each number of steps.
        measured: ‖∇Φ(x_k)‖ of every step of a run; the plot has the running mean of squares.
        ax: matplotlib axes to draw into; default: a new figure.
    """
    several = certificates if isinstance(certificates, Mapping) else {"certified": certificates}
    for given in several.values() or [None]:
        kind = "a certificate, or several by name"
        one = check_kind(given, Certificate, "certificates", kind, "pass bl.theory.aid(...)")
        if shape := list(np.shape(one.beta_max)):
            fix = "pass one certificate for each, by name"
            raise ValueError(f"certificates must be of plain constants, not of arrays {shape}: {fix}")
    at = np.unique(np.geomspace(1, check_count(steps, "steps"), POINTS).round().astype(int))
    numbers = dict(gap=gap, y_error=y_error, v_error=v_error, beta=beta)
    for name, value in numbers.items():
        if value is not None and as_number(value) is None:
            fix = "draw several into the same axes"
            raise ValueError(f"{name} must be one number, not {shown(value)}: {fix}")
    bounds = {name: np.broadcast_to(one.bound(at, **numbers), at.shape) for name, one in several.items()}
    for name, bound in bounds.items():
        if not np.isfinite(bound).any():
            start = ", ".join(f"{key}={shown(value)}" for key, value in numbers.items())
            most, fix = float(several[name].beta_max), "leave beta out, or pass smaller numbers"
            raise ValueError(
                f"nothing is certified by {name!r} with {start}: its beta_max is {most:.3g}; {fix}"
            )
    mean = None if measured is None else _running_mean(measured)
    with look():
        axes = panel(ax)
        before = len(axes.get_lines())
        for i, (name, bound) in enumerate(bounds.items()):
            draw_line(axes, at, bound, before + i, label=name, marker="")
        if mean is not None:
            style = dict(color=axes.xaxis.label.get_color(), linestyle="--", label="measured")
            draw_line(axes, np.arange(1, len(mean) + 1), mean, 0, **style)
        axes.set(xscale="log", yscale="log", xlabel="steps K", ylabel="mean of ‖∇Φ(x$_k$)‖² over k < K")
        axes.legend()
    return axes


def _running_mean(measured: Any) -> np.ndarray:
    norms = as_numbers(measured)
    if norms is None or norms.ndim != 1 or not norms.size or not (norms >= 0).all():
        what = "measured must be an array with ‖∇Φ(x_k)‖ of every step"
        raise ValueError(f'{what}, not {shown(measured)}: pass e.g. result.trace["hypergradient_norm"]')
    return np.cumsum(norms**2) / np.arange(1, len(norms) + 1)
