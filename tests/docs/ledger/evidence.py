"""Figures of docs/about/ and docs/theory/."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from faults import kills
from origins import About, AtLeast, AtMost, Claims, cell, column, number, rows
from race.tasks import FULL

from bilevel.data import counties, download
from bilevel.data.counties import COUNTIES, bundled_counties
from bilevel.data.digits import _bundled
from bilevel.lab.paper import fig3_features, fig3_reweighting, quadratic_runs, table1
from bilevel.problems.reweighting import initial_mlp
from bilevel.theory import Constants, cheapest, star
from bilevel.theory.certificates import limit, momentum, momentum_gains
from bilevel.theory.certificates.certificate import SLACK
from bilevel.theory.verification import _verify, measurement

MIB = 2**20
MLP = sum(layer.size for layer in initial_mlp(784, 256, 10, seed=0))
IMAGES = len(_bundled().train), len(_bundled().test)
STAR, PAPER = "worst-case-star", "worst-case-paper"
SLIP = Constants(1.0, 1.02, 0.02, 5000.0)  # the example, with h and v at 0, and Φ'' there
SLIP_AT_0 = 1.01, 0.0197, 4, 4 * (SLIP.L + SLIP.rho * 0.0197)


def county_multiples() -> np.ndarray:
    """The common factor of each bundled county's five counts."""
    own = bundled_counties()
    counts = np.rint(np.exp(np.column_stack([own.inputs[:, :4], own.targets + own.inputs[:, 0]])))
    return np.gcd.reduce(counts.astype(int), axis=1)


def ridge() -> tuple[int, About]:
    """The penalties of the last task, and the condition number of the curvature at its start."""
    task = FULL["ridge"]()
    inputs = task.train[0]
    curvatures = np.linalg.eigvalsh(inputs.T @ inputs / len(inputs) + np.diag(np.exp(task.x0)))
    return len(task.x0), About(curvatures[-1] / curvatures[0])


def best_momentum() -> float:
    """How much larger β is with 1 − m = √(1.5/κ) than with 2/√κ, nearly, for large κ."""
    k = Constants(1e-8, 1.0, 1.0, 0.0).blocks
    return momentum.aid(k, m=1 - math.sqrt(1.5e-8)).beta_max / momentum.aid(k).beta_max


def half_parabola() -> float:
    """The largest κ of the table, at which the response is larger than μΓ."""
    last = rows("momentum-half-parabola")[-1]
    assert number(last[r"$(\sum y_k^2)^{1/2}$"]) > number(last[r"$\mu\Gamma$"])
    return number(last[r"$\kappa$"])


class Plan(NamedTuple):
    """The cheapest N = Q, the calls that it saves over the single loop, and the steps alone."""

    steps: int
    saved: float
    of_steps: float


@cache
def plans() -> dict[int, Plan]:
    found = {}
    for kappa in (2, 10, 100, 1000):
        k = Constants(1 / kappa, 1.0, 1.0, 1.0)
        plan = cheapest(k, 1e-3, 1.0)
        assert plan.inner_steps == plan.adjoint_steps
        steps = plan.inner_steps + plan.adjoint_steps
        single = 5 * np.ceil(2.0**60 * star.aid(k).bound(2.0**60, 1.0) / 1e-3)
        of_steps = single * 2 / 5 / (plan.calls * steps / (steps + 3))
        found[kappa] = Plan(plan.inner_steps, single / plan.calls, of_steps)
    return found


def stability_of_plain_steps() -> tuple[float, float]:
    """The smallest β that is not stable, times κ³, and over the certified one, at the largest κ of the table."""
    last = rows("momentum-stability")[-1]
    beta, _, times = last[r"plain, $\frac2{L+\mu}$"].partition(" (")
    return number(beta) * number(last[r"$\kappa$"]) ** 3, number(times)


def steps_gained(rule: str) -> tuple[float, ...]:
    """Over plain steps, at κ = 100 and the best step sizes: least and most."""
    found = [
        row
        for row in rows("momentum-steps")
        if row[r"$\kappa$"] == "100" and "best" in row["problem and step"]
    ]
    (plain,) = (head for head in found[0] if head.startswith("plain"))
    return tuple(sorted(number(row[plain]) / number(row[rule]) for row in found))


def of(name: str, above: str, below: str, kappa: str = "", least: int = 1) -> np.ndarray:
    """The ratio of two columns, from K = `least` on, at one κ or at all."""
    chosen = [row for row in rows(name) if int(row["K"]) >= least and row["κ"] in (kappa or row["κ"],)]
    return np.array([number(row[above]) / number(row[below]) for row in chosen])


def two_steps(above: str, below: str) -> tuple[float, float]:
    """Of two steps, where another β would be better: the least and the largest change."""
    changes = [abs(number(row[above]) / number(row[below]) - 1) for row in rows(STAR) if row["K"] == "2"]
    return min(changes), max(changes)


def ends(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def at_its_own_beta() -> tuple[About, About]:
    """Theorem 5.9 over `star` at κ = 10 and K = 10, each at its own β; and the latter over the former."""
    paper, star = (
        next(row for row in rows(name) if (row["κ"], row["K"]) == ("10", "10")) for name in (PAPER, STAR)
    )
    return About(number(paper["paper"]) / number(star["star"])), About(number(star["β"]) / number(paper["β"]))


def from_exact_starts() -> AtMost:
    """The largest bound over what was found, of `star` in one dimension."""
    ours = [row for row in rows("certificates") if row["certificate"].startswith("`star")]
    cells = [text for row in ours for head, text in row.items() if head.startswith("κ ")]
    return AtMost(max(float(text.split(", ")[1]) for text in cells) - 1)


def any_beta(kappas: set[str]) -> float:
    """How far the worst problems leave the bound, at the β where it is least."""
    found = [row for row in rows("worst-problems") if row["β"] == "any" and row["κ"] in kappas]
    return max(number(text) for row in found for head, text in row.items() if head.startswith("K ="))


CLAIMS: Claims = {
    "docs/about/benchmarks.md": {
        "ITD 1.75, SOBA 2.27, AID 3.27": lambda: tuple(
            cell("README.md", f"`bl.{name}`", "operations per step") for name in ("itd", "soba", "aid")
        ),
        "0.78 MiB each on the network of 203,530": (4 * MLP / MIB, MLP),
        "500 penalties, κ ≈ 1000": ridge,
        "The first three tasks reweight 2,000 × 784": lambda: FULL["aid"]().train[0].shape,
        "further away than 10⁻⁴ (10⁻⁵ in the last task)": lambda: (
            FULL["aid"]().tolerance,
            FULL["ridge"]().tolerance,
        ),
        "203,530 unknowns": MLP,
        "below 4.9. hypertorch": 200 * np.finfo(np.float32).eps * MLP,  # as lineax has it: see methods.md
    },
    "docs/about/data.md": {
        "no more than 64 MiB": download.LARGEST / MIB,
        "(5,000 images)": sum(IMAGES),
        "3,107 lines": COUNTIES,
        "The 3,064 bundled counties must be found in their rows to within 1e-5": lambda: (
            len(bundled_counties().rows),
            counties.TOLERANCE,
        ),
        "which they must meet to 1e-9": counties.CLOSE,
        "a change below 1e-9": counties.CLOSE,
        "5,000 images of MNIST's training set": sum(IMAGES),
        "4,000 for training, 1,000 for testing": IMAGES,
        "(INCOME/POP is below 32) that holds to Q = 11 million": (
            32,
            AtLeast(math.sqrt(1 / (2 * math.ulp(math.nextafter(32, 0))))),
        ),
        "1/ζ(5) = 96.4 %": (1, 5, 1 / sum(n**-5 for n in range(1, 1000))),
        "forces m = 1: 2,980 counties": lambda: (1, np.sum(county_multiples() == 1)),
        "That keeps **3,064 counties**": lambda: len(bundled_counties().rows),
        "all five counts of all 3,064 counties": lambda: len(bundled_counties().rows),
    },
    "docs/about/reliability.md": {"A run of 1,500 steps": kills.STEPS},
    "docs/about/reproduction.md": {
        "`μ = m = ρ = 0.1`, `K = 10,000`": (quadratic_runs.MU, quadratic_runs.STEPS),
        "24 values from 1.5 to 20": (quadratic_runs.KAPPAS.size, *quadratic_runs.KAPPAS[[0, -1]]),
        "within 10 % of the lowest": SLACK,
        "The paper sets M = 0.1, but `‖∇_y f‖ = 0.1": (
            quadratic_runs.COEFFICIENT,
            quadratic_runs.COEFFICIENT,
        ),
        "the figures show M = 0.1": quadratic_runs.COEFFICIENT,
        "ρ = 0.1 is a valid": quadratic_runs.RHO,
        "hardly left x₀ after 10,000 steps": quadratic_runs.STEPS,
        "by half at κ = 1.5 and by a tenth at κ = 20": tuple(quadratic_runs.KAPPAS[[0, -1]]),
        "computed with M = 0.1,": quadratic_runs.COEFFICIENT,
        "for κ from 10³ to 10⁵": tuple(table1.KAPPAS_OF_BOUNDS[[0, -1]]),
        "ε = 0.4, 0.2, 0.1": table1.EPSILONS,
        "κ ends at 3.5": table1.KAPPAS_OF_RUNS[-1],
        "K = 10,000 iterations of ITD": fig3_features.STEPS,
        "would not leave the start within 10,000 steps": fig3_features.STEPS,
        "2,000 training images whose labels are replaced with probability 0.2": (
            fig3_reweighting.TRAIN,
            fig3_reweighting.WRONG,
        ),
        "inner rate 5e-2, outer rate 1e-3, 3,000 iterations": (
            fig3_reweighting.INNER,
            fig3_reweighting.OUTER,
            fig3_reweighting.STEPS,
        ),
        "blank in all 2,500 images": fig3_reweighting.TRAIN + fig3_reweighting.VALID,
        "one in 2,000": fig3_reweighting.TRAIN,
        "The inner rate is 0.5 for 300 iterations": (
            fig3_reweighting.USEFUL_INNER,
            fig3_reweighting.USEFUL_STEPS,
        ),
        "one of 0.01, 0.03, 0.1": fig3_reweighting.USEFUL_RATES,
    },
    "docs/theory/assumptions-and-slips.md": {
        r"$L=1.02$, $M=0.02$, $\rho=5000$ the printed constant is 314 and the blockwise one 412": (
            SLIP.L,
            SLIP.M,
            SLIP.rho,
            SLIP.L_Phi,
            SLIP.L_Phi_blockwise,
        ),
        r"h=1.01,\ v=0.0197$$ has all these blocks, and $\Phi''=4(L+\rho v)=398$": SLIP_AT_0,
        "$G''$ reaches $2.5$": 1 + 6 * 0.5 - 6 * 0.5**2,  # G'' = 1 + 6u − 6u² on [0, 1]
    },
    "docs/theory/index.md": {"within 10 % of the lowest": SLACK},
    "docs/theory/kappa4.md": {
        r"valid $M=0.1\sqrt": quadratic_runs.COEFFICIENT,
        r"$\rho=0.1$; each analysis": quadratic_runs.RHO,
    },
    "docs/theory/limit.md": {
        r"with $q=-0.49(": -limit.CONVEX / 2,
        r"$\nabla^2\Phi=0.02\lambda": 1 - limit.CONVEX,
        r"by $(-1,-0.49(": (-1, -limit.CONVEX / 2),
    },
    "docs/theory/lower-bound.md": {"the coefficient $0.1$": quadratic_runs.COEFFICIENT},
    "docs/theory/momentum.md": {
        "by more than $10^{-6}$": momentum_gains.EXCESS,
        "that is 1.4 times": best_momentum,
        r"$4/\kappa^3$ for plain steps, 4 times": stability_of_plain_steps,
        "about 2.3 times": lambda: number(rows("momentum-stability")[-1]["Nesterov"].partition("(")[2]),
        r"$-0.34\sqrt": lambda: cell("momentum-half-parabola", "1000", "lowest $y_k$") / math.sqrt(1000),
        r"=0.57/": 8 * (math.sqrt(2) - 1) ** 3,
        "it is 2.5 to 3.8 times": lambda: steps_gained("Nesterov"),
        "4.5 to 9 times": lambda: steps_gained("heavy ball"),
        r"at $\kappa=1000$ (without": half_parabola,
        r"at $\kappa=1000$ that is more": half_parabola,
    },
    "docs/theory/recursions.md": {
        r"$\kappa\ge3.4$": 1 / (1 - 1 / math.sqrt(2)),
    },
    "docs/theory/sharp.md": {
        r"($\mu=\rho=0.1$, valid $M=0.1\sqrt": (quadratic_runs.MU, quadratic_runs.COEFFICIENT),
    },
    "docs/theory/star.md": {
        r"$N=Q=1$ at $\kappa=2$, $6$ at $10$, $48$ at $100$ and $450$ at $1000$, about $0.45\kappa$": lambda: (
            *(number for kappa, plan in plans().items() for number in (plan.steps, kappa)),
            plans()[1000].steps / 1000,
        ),
        "a factor of 1, 2.1, 2.7 and 2.8 over": lambda: tuple(plan.saved for plan in plans().values()),
        "a factor of 2.5 at most": 5 / 2,  # calls a step: 5 with N = Q = 1, (2N + 3)/N otherwise
        "within 13 % of the best": lambda: max(plan.of_steps for plan in plans().values()) - 1,
    },
    "docs/theory/verification.md": {
        "0.173, 0.5 and 0.827 of the way": measurement.NODES,
        "by more than 10⁻⁹": _verify.TOLERANCE,
    },
    "docs/theory/worst-case.md": {
        "at most 5.5 % above": lambda: of(STAR, "star", "worst case").max() - 1,
        "3.1 % from $v_0": lambda: of("worst-case-no-adjoint", "star", "worst case").max() - 1,
        "by more than 0.4 %": lambda: AtMost(1 - of(STAR, "worst case there", "worst case", least=3).min()),
        "15 to 52 % larger": lambda: two_steps("best β", "β"),
        "3 to 13 % lower": lambda: two_steps("worst case there", "worst case"),
        "reach 93 % of the worst case": lambda: of(STAR, "found", "worst case", "2").min(),
        r"67 to 85 % at $\kappa=5$ and $10$": lambda: (
            *ends(np.append(*(of(STAR, "found", "worst case", kappa, least=2) for kappa in ("5", "10")))),
            5,
            10,
        ),
        "20 to 25 % lower": lambda: ends(1 - of(STAR, "to the infimum", "worst case", "10", least=2)),
        "within 3 % of each other": lambda: AtMost(of(PAPER, "star", "found").max() - 1),
        "is 2.5 times too large": lambda: of(PAPER, "paper", "worst case").mean(),
        "its bound is 700 times that of `star` at *its* $\\beta$, which is 570 times": at_its_own_beta,
        "116,961 runs": lambda: sum(column("certificates", "runs")),
        "it is within 21 %": from_exact_starts,
        r"12 % at $\kappa=2$": lambda: (any_beta({"2"}) - 1, 2),
        "a factor of 1.7": lambda: AtMost(any_beta({"2", "5", "10", "100"})),
    },
}
