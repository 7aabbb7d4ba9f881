"""From κ⁶ to κ⁴ in four pictures: bounds, step sizes, what an inner error is charged, and a run.

python examples/kappa4.py [--steps 20000] [--out folder]
"""

import argparse
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import bilevel as bl
from bilevel import theory

matplotlib.rcParams.update({"svg.hashsalt": "bilevel", "font.size": 13})  # the same figure, the same bytes
STYLE = {
    "earlier": ("#999999", ":", "earlier, κ⁶"),
    "paper": ("#d55e00", "--", "Theorem 5.9, κ⁵"),
    "sharp": ("#e69f00", "-.", "sharp, κ⁵"),
    "tight": ("#009e73", (0, (5, 1)), "tight, κ⁵"),
    "star": ("#0072b2", "-", "star, κ⁴"),
}
GAP, FOREVER = 1.0, 1e24  # K·bound no longer depends on K then

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=20_000)
parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()))
arguments = parser.parse_args()
jax.config.update("jax_enable_x64", True)


def style(name: str) -> dict:
    color, dashes, label = STYLE[name]
    return {"color": color, "linestyle": dashes, "label": label, "linewidth": 2.2 if name == "star" else 1.6}


def frame(title: str, xlabel: str):
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=xlabel, xscale="log", yscale="log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_minor_formatter(NullFormatter())
    return figure, axes


def finish(figure, axes, name: str, **legend) -> None:
    axes.legend(frameon=False, fontsize=11, handlelength=2.6, **legend)
    figure.savefig(arguments.out / f"{name}.svg", metadata={"Date": None})
    print(f"written: {arguments.out / name}.svg")


def order(kappas: np.ndarray, values: np.ndarray) -> float:
    """The power of κ, from the upper half of the grid."""
    half = len(kappas) // 2
    return np.polyfit(np.log(kappas[half:]), np.log(values[half:]), 1)[0]


# L = M = ρ = 1 and an exact start, so that μ = 1/κ and λ = L + ρM/μ = 1 + κ.
kappas = np.geomspace(1, 1000, 31)
constants = theory.Constants(1 / kappas, 1.0, 1.0, 1.0)
certificates = theory.analyses(constants)
limit = theory.limit.aid(constants)

figure, axes = frame("What K·mean ‖∇Φ‖² is promised to be", "κ")
for name, certificate in certificates.items():
    bound = FOREVER * certificate.bound(FOREVER, GAP, 0.0, 0.0)
    axes.plot(kappas, bound, **style(name))
    print(f"{name}: K·bound = κ^{order(kappas, bound):.2f}")
floor = FOREVER * limit.rate(FOREVER, GAP)
print(f"star over the floor: {bound[-1] / floor[-1]:.2f}, the floor itself κ^{order(kappas, floor):.2f}")
axes.plot(kappas, floor, color="black", linewidth=1, label="some problem needs this much")
axes.fill_between(kappas, floor, floor[0] / 10, color="black", alpha=0.08, linewidth=0)
axes.set_ylim(floor[0] / 10, None)
finish(figure, axes, "kappa4-bounds", loc="upper left")

figure, axes = frame("Outer step β that is certified", "κ")
top = 30 * limit.beta[0]
for name, certificate in certificates.items():
    axes.plot(kappas, np.broadcast_to(certificate.beta_max, kappas.shape), **style(name))
axes.plot(kappas, limit.beta, color="black", linewidth=1, label="some problem diverges")
axes.fill_between(kappas, limit.beta, top, color="black", alpha=0.08, linewidth=0)
axes.set_ylim(None, top)
finish(figure, axes, "kappa4-steps", loc="lower left")
short = theory.limit.aid(constants, 1.0, 1.0).beta / theory.star.aid(constants, 1.0, 1.0).beta_max
print(f"first unstable over certified β, largest κ: {short[-1]:.2f} (1/L), ", end="")
print(f"{(limit.beta / certificates['star'].beta_max)[-1]:.2f} (2/(L + μ))")


def charges(name: str, kappa: float, steps: int) -> np.ndarray:
    """What ‖ŷ₀ − y*₀‖ = 1 adds to the bound on ‖h_k − ∇Φ(x_k)‖, k < steps, while x stands still. α = η = 1/L."""
    k = theory.Constants(1 / kappa, 1.0, 1.0, 1.0)
    certificate = theory.tight.aid(k) if name == "tight" else theory.star.aid(k, 1.0, 1.0)
    system, (weight, _) = certificate.system, certificate.weights
    w, out = np.array([weight, 0.0]), []
    for _ in range(steps):
        out.append(system.c0 * w[0] + w[1])
        w = np.array([[system.r0, 0.0], [system.p, system.r1]]) @ w
    return np.array(out)


figure, axes = frame("What one inner error is charged, κ = 20", "k, steps after ‖ŷ − y*‖ = 1")
axes.set_xscale("linear")
axes.set_ylabel("added to the bound on ‖h − ∇Φ‖")
axes.plot(charges("tight", 20.0, 120), **style("tight") | {"label": "v̂ compared with ṽ*, at ŷ"})
axes.plot(charges("star", 20.0, 120), **style("star") | {"label": "v̂ compared with v*, at y*"})
finish(figure, axes, "kappa4-charge", loc="upper right")
for kappa in (20.0, 200.0):
    ratio = charges("tight", kappa, int(40 * kappa)).sum() / charges("star", kappa, int(40 * kappa)).sum()
    print(f"charged in all, ṽ* over v*, κ = {kappa:g}: {ratio:.1f}")

# The paper's test problem; ρ = 0.1 is valid for a quadratic g, whose true ρ is 0.
steps = arguments.steps
q = bl.problems.quadratic(mu=0.1, kappa=5.0)
x0 = jnp.ones(2)
gap = float(q.value(x0) - q.value(q.solution))
v_error = float(jnp.linalg.norm(0.1 * jnp.ones(2) / jnp.array([0.5, 0.1])))  # v* = Z⁻¹p
size = lambda x: jnp.sum(q.hypergradient(x) ** 2)
figure, axes = frame("Bound over what the run did, κ = 5", "K")
for name, certificate in theory.analyses(theory.Constants(0.1, 0.5, 0.1 * 2**0.5, 0.1)).items():
    best = certificate.best_beta(steps, gap, 0.0, v_error)
    beta = float(np.minimum(best, certificate.beta_max))  # good for every number of steps
    solver = bl.aid(q.problem, inner=float(certificate.alpha), adjoint=float(certificate.eta), outer=beta)
    record = lambda state, info: {"size": size(state.x)}
    trace = bl.run(solver, x0, q.inner_solution(x0), steps=steps, record=record).trace["size"]
    sizes = np.concatenate([[size(x0)], trace[:-1]])
    K = np.unique(np.geomspace(1, steps, 100).astype(int))
    measured = (np.cumsum(sizes) / np.arange(1, steps + 1))[K - 1]
    bound = certificate.bound(K, gap, 0.0, v_error, beta)
    color = style(name)
    axes.plot(K, bound / measured, **color | {"label": f"{color['label']}: β = {beta:.1e}"})
    print(f"{name}: β = {beta:.2e}, mean after {steps} steps {measured[-1]:.2e}, bound {bound[-1]:.2e}")
axes.set_ylim(1, None)
finish(figure, axes, "kappa4-run", loc="upper right")
