"""The picture of the landing page: one small problem solved by retraining y for every x, and by a single loop.

    python docs/pictures/single_loop.py [FILE]

Both take the same step sizes from the same start. Along the axis updates are counted, each of one variable: a step of
the single loop has three of them.
"""

import sys

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from matplotlib import pyplot

import bilevel as bl

ALPHA, ETA, BETA = 0.25, 0.25, 0.1
UPDATES, RETRAIN = 210, 20
COLORS = {"x": "#D55E00", "y": "#0072B2", "v": "#009E73"}
WORDS = {"x": "x, what is tuned", "y": "y, the model", "v": "v, the adjoint"}


def inner(x, y):  # y*(x) = 2 − x
    return (y + x - 2) ** 2 / 2


def outer(x, y):
    return (y - 1.5) ** 2 / 2 + (x - 2) ** 2 / 2


def single_loop():
    solver = bl.aid(bl.Problem(inner=inner, outer=outer), inner=ALPHA, adjoint=ETA, outer=BETA)
    keep = lambda state, info: {name: getattr(state, name) for name in "xyv"}
    trace = bl.run(solver, jnp.zeros(()), jnp.zeros(()), steps=UPDATES // 3, record=keep).trace
    return {name: np.concatenate([[0.0], trace[name]]) for name in "xyv"}


def retraining():
    """From scratch for every x: y to the end, then v to the end, then one step on x."""
    x, path = 0.0, []
    while len(path) <= UPDATES:
        y = v = 0.0
        for _ in range(RETRAIN):
            path.append((x, y, np.nan))
            y -= ALPHA * jax.grad(inner, argnums=1)(x, y)
        curvature = jax.hessian(inner, argnums=1)(x, y)
        for _ in range(RETRAIN):
            path.append((x, y, v))
            v -= ETA * (curvature * v - jax.grad(outer, argnums=1)(x, y))
        cross = jax.grad(jax.grad(inner, argnums=1), argnums=0)(x, y)
        x -= BETA * (jax.grad(outer)(x, y) - cross * v)
    return dict(zip("xyv", np.array(path[: UPDATES + 1], float).T, strict=True))


def draw(file: str) -> None:
    goal = {"x": 1.25, "y": 0.75, "v": -0.75}  # where ∇Φ = 0: v = y − 1.5 = x − 2
    rows = {
        "Retraining: y to the end, v to the end, one step on x": retraining(),
        "Single loop: x, y and v move together": single_loop(),
    }
    style = {
        "font.size": 10,
        "figure.facecolor": "white",
        "svg.hashsalt": "bilevel",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(style):
        figure, panels = pyplot.subplots(
            2, 1, figsize=(5, 4.6), sharex=True, sharey=True, layout="constrained"
        )
        for panel, (title, path) in zip(panels, rows.items(), strict=True):
            panel.set_title(title, loc="left", fontsize=10.5, fontweight="bold")
            for name, values in path.items():
                panel.axhline(goal[name], color=COLORS[name], linewidth=0.8, linestyle=(0, (2, 3)))
                panel.plot(
                    np.linspace(0, UPDATES, len(values)),
                    values,
                    color=COLORS[name],
                    linewidth=2.2 if name == "x" else 1.6,
                )
            panel.set_yticks([])
            panel.set_ylim(-1.1, 2.15)
            panel.set_xlim(0, UPDATES)
        for name, values in goal.items():
            side = {"ha": "right", "va": "top" if name == "y" else "bottom", "color": COLORS[name]}
            panels[1].text(UPDATES, values + (-0.08 if name == "y" else 0.05), WORDS[name], **side)
        panels[0].text(2, goal["v"] + 0.05, "dotted: where each should end", va="bottom", color="#555555")
        panels[1].set_xlabel("updates of y, v or x")
        figure.savefig(file, metadata={"Date": None} if file.endswith(".svg") else None)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "single-loop.svg")
