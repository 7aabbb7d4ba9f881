"""Where an extra κ comes from: the norm of an error bounded first and squared last, or squared first.

python examples/recursions.py [--steps 60] [--out recursions.svg]
"""

import argparse
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from bilevel.theory import recursions

matplotlib.rcParams["svg.hashsalt"] = "bilevel"  # the same figure, the same bytes

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "recursions.svg")
arguments = parser.parse_args()

kappa = 10.0
r = 1 - 1 / kappa
hits = (np.arange(arguments.steps) % 20 == 0).astype(float)  # a perturbation now and then
linear, squared = recursions.decoupled(r, hits), recursions.direct(r, hits)

figure = Figure(figsize=(9, 3.6), layout="constrained")
left, right = figure.subplots(1, 2)
left.plot(linear, color="#0072b2", label="norm first, square last")
left.plot(squared, color="#d55e00", linestyle="--", label="square first")
left.set(
    title=f"a unit perturbation every 20 steps, κ = {kappa:g}",
    xlabel="k",
    ylabel="bound on ‖e_k‖²",
    yscale="log",
)
left.set_ylim(1e-3, 30)
left.legend(frameon=False, loc="lower left")

kappas = np.geomspace(2, 1000, 50)
rates = 1 - 1 / kappas
once, once_squared = recursions.impulse_energy(rates)
right.loglog(kappas, recursions.decoupled_gain(rates), color="#0072b2", label="lasting: both ways, κ²")
right.loglog(kappas, once, color="#009e73", linestyle="-.", label="once: norm first, κ/2")
right.loglog(kappas, once_squared, color="#d55e00", linestyle="--", label="once: square first, κ²")
right.set(title="Σ‖e_k‖² that a unit perturbation is charged", xlabel="κ (log scale)", ylabel="log scale")
right.legend(frameon=False)

for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(arguments.out, metadata={"Date": None})
print(f"written: {arguments.out}")
