"""Of docs/theory/."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from origins import About, AtMost, ByTest, Claims, Values, column, number, rows, written

from bilevel.lab.paper import quadratic_runs
from bilevel.theory import Constants, cheapest, star
from bilevel.theory.certificates import limit, momentum, momentum_gains
from bilevel.theory.certificates.certificate import SLACK
from bilevel.theory.verification import _verify, segments

SLIPS = "tests/theory/verification/test_verify_beyond.py"
PRINTED = ByTest("tests/theory/certificates/test_paper_slips.py")
ADVERSARIES = "benchmarks/momentum_adversaries.py"
STAR, PAPER = "worst-case-star", "worst-case-paper"


def slips() -> Values:
    """L, M and ρ of the example, and the two constants of Φ's smoothness."""
    mu, L, M, rho = written(SLIPS, r"K = theory.Constants\(mu=(\S+), L=(\S+), M=(\S+), rho=(\S+)\)")
    k = Constants(mu, L, M, rho)
    return L, M, rho, k.L_Phi, k.L_Phi_blockwise


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
    "docs/theory/assumptions-and-slips.md": {
        "$G''$ reaches $2.5$": 1 + 6 * 0.5 - 6 * 0.5**2,  # G'' = 1 + 6u − 6u² on [0, 1]
        r"$L=1.02$, $M=0.02$, $\rho=5000$ the printed constant is 314 and the blockwise one 412": slips,
        r"$|x+y|\le2\cdot10^{-6}$": lambda: written(SLIPS, r"state.x\[0\] \+ state.y\[0\]\)\) <= (\S+)"),
        r"h=1.01,\ v=0.0197": lambda: written(SLIPS, r"H, F, V = (\S+), \S+, (\S+)"),
        "is 1.27 times": ByTest(SLIPS),
        "1.37 times from": ByTest(SLIPS),
        "it is 0.97 of the bound": ByTest(SLIPS),
    },
    "docs/theory/index.md": {"within 10 % of the lowest": SLACK},
    "docs/theory/itd.md": {r"$5.31\,C_5^2$": PRINTED},
    "docs/theory/kappa4.md": {
        r"valid $M=0.1\sqrt": quadratic_runs.COEFFICIENT,
        r"$\rho=0.1$; each analysis": quadratic_runs.RHO,
        "After 20,000 steps": ByTest("tests/theory/certificates/test_kappa4.py"),
    },
    "docs/theory/limit.md": {
        r"with $q=-0.49(": -limit.CONVEX / 2,
        r"$\nabla^2\Phi=0.02\lambda": 1 - limit.CONVEX,
        r"Bernstein coefficients on $[0.4,0.63]$ are all negative, from $-0.566$ to $-0.036$": ByTest(
            "tests/theory/certificates/test_limit.py"
        ),
        r"by $(-1,-0.49(": (-1, -limit.CONVEX / 2),
    },
    "docs/theory/lower-bound.md": {"the coefficient $0.1$": quadratic_runs.COEFFICIENT},
    "docs/theory/momentum.md": {
        "by more than $10^{-6}$": momentum_gains.EXCESS,
        r"for $\kappa$ from 1 to $10^5$": lambda: written(
            "tests/theory/certificates/test_momentum.py", r"for kappa in \[(\S+), .*, (\S+)\]:\n.*root, mu, L"
        ),
        r"$\mu\Gamma_w=1.033$": ByTest("tests/theory/certificates/test_momentum.py"),
        "that is 1.4 times": best_momentum,
        r"\approx0.35\,": ByTest("tests/theory/certificates/test_momentum.py"),
        "do 3 % below and above": lambda: (
            written("benchmarks/momentum.py", r"np.array\(\[0.97, (\S+)\]\)") - 1
        ),
        r"$4/\kappa^3$ for plain steps, 4 times": stability_of_plain_steps,
        r"=0.57/": 8 * (math.sqrt(2) - 1) ** 3,
        "2.27 times": ByTest("tests/theory/certificates/test_momentum.py"),
        "stays below $10^{-3}$": lambda: written("benchmarks/momentum.py", r"slopes <= (\S+) \* first"),
        "at 0.9 of the certified": lambda: written(
            "benchmarks/momentum.py", r"shares = np.concatenate\(\[\[(\S+)\]"
        ),
        "it is 2.5 to 3.8 times": lambda: steps_gained("Nesterov"),
        "4.5 to 9 times": lambda: steps_gained("heavy ball"),
        r"$-0.34\sqrt": ByTest("tests/theory/certificates/test_momentum.py"),
        r"at $\kappa=1000$ (without": half_parabola,
        r"at $\kappa=1000$ that is more": half_parabola,
        "of 20,000 problems": lambda: written(ADVERSARIES, r"def kinks\(.*count: int = (\S+)\)"),
        "3,000 random runs": lambda: written(ADVERSARIES, r"exact: bool, .*count: int = (\d+), steps"),
    },
    "docs/theory/recursions.md": {
        r"$\kappa\ge3.4$": 1 / (1 - 1 / math.sqrt(2)),
        r"with $\mu=0.1$, $L=M": lambda: written(
            "tests/theory/certificates/test_recursions.py", r"mu, L, M, rho = (\S+), 1.0, 1.0, 1.0"
        ),
    },
    "docs/theory/sharp.md": {
        r"($\mu=\rho=0.1$, valid $M=0.1\sqrt": (quadratic_runs.MU, quadratic_runs.COEFFICIENT),
        "between 2 and 5.31 times": PRINTED,
    },
    "docs/theory/star.md": {
        r"is 3.99 for $\rho=1$ and 3.00 for": ByTest("tests/theory/certificates/test_star.py"),
        r"$N=Q=1$ at $\kappa=2$, $6$ at $10$, $48$ at $100$ and $450$ at $1000$, about $0.45\kappa$": lambda: (
            *(number for kappa, plan in plans().items() for number in (plan.steps, kappa)),
            plans()[1000].steps / 1000,
        ),
        "a factor of 1, 2.1, 2.7 and 2.8 over": lambda: tuple(plan.saved for plan in plans().values()),
        "a factor of 2.5 at most": 5 / 2,  # calls a step: 5 with N = Q = 1, (2N + 3)/N otherwise
        "within 13 % of the best": lambda: max(plan.of_steps for plan in plans().values()) - 1,
    },
    "docs/theory/stochastic.md": {
        "to 0.1 % (a test)": lambda: (
            written("tests/theory/certificates/test_stochastic.py", r"bound < (\S+) \* exact") - 1
        ),
    },
    "docs/theory/verification.md": {
        "0.173, 0.5 and 0.827 of the way": segments.NODES,
        "by more than 10⁻⁹": _verify.TOLERANCE,
    },
    "docs/theory/worst-case.md": {
        "is between 1 and 1000": lambda: written(
            "benchmarks/certificates.py", r"EDGES = np.array\(\[(\S+), .*, (\S+)\]"
        ),
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
        "off by 30 % in $v$": lambda: written("benchmarks/adversaries.py", r"\[(\S+) \* off, -1.0\]"),
        "116,961 runs": lambda: sum(column("certificates", "runs")),
        "(2,500 adversarial": lambda: written(
            "benchmarks/certificates.py", r'"--problems", type=int, default=(\d+)'
        ),
        "it is within 21 %": from_exact_starts,
        r"12 % at $\kappa=2$": lambda: (any_beta({"2"}) - 1, 2),
        "a factor of 1.7": lambda: AtMost(any_beta({"2", "5", "10", "100"})),
    },
}
