"""The worst problem that can be found for AID, with the paper's constants L = M = ρ = 1 and an exact start.

    python benchmarks/worst_problems.py [--seed 0] [--record docs/measured]

Problems of `adversaries.py`, the fittest of them mutated. The table has the bound of `star.aid` at its best β for K,
over the largest actual mean found at that β, and over the largest found at whichever β has least. No certificate that
covers these problems can be better than `star` by more than the latter.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import product

import jax
import numpy as np
import record
from adversaries import Bounds, Choices, worst
from certificates import Case, descended, measured

from bilevel import theory

OTHERS = (0.5, 0.7, 0.84, 1.0, 1.2, 1.4, 2.0, 4.0)  # times the best β of `star`: what other β would do
KAPPAS, STEPS = (2, 5, 10, 100), (1, 3, 10, 30, 100)


def searched(
    kappa: float,
    alpha: float,
    eta: float,
    beta: float,
    steps: int,
    rng: np.random.Generator,
    known: Sequence[Choices] = (),
    count: int = 400,
    generations: int = 40,
) -> tuple[float, Choices]:
    """The largest mean of ‖∇Φ(x_k)‖² per unit of descent that AID has from an exact start, as far as a search finds it.

    With the paper's constants L = M = ρ = 1. The search begins at random choices and at the `known` ones.
    """
    one = np.ones(count)
    k, beta = Bounds(one / kappa, *(one for _ in range(9))), beta * one

    def descent(choices: Choices) -> np.ndarray:
        problems = choices.against(k, beta, steps)
        squares, values, inside = measured(Case("star", "AID"), alpha, eta, beta, problems, steps)
        mean = squares.mean(axis=1)
        # A slope that is nearly nothing is the rounding of p and of v*, which a search would find.
        counts = inside[:, -1] & (np.sqrt(mean) > 1e-6 * np.abs(problems.outer.p))
        return np.where(counts, descended(values)[:, -1] / mean, np.inf).astype(float)

    start = Choices.random(rng, count).starting_exactly().after(known)
    least, choices = worst(descent, start, rng, generations)
    return 1 / least, choices


def rows(kappa: int, seed: int, count: int, passes: Sequence[int]) -> Iterator[list]:
    """Over all K and β as often as there are `passes` of so many generations, each from what has been found before."""
    c = theory.star.aid(theory.Constants(1 / kappa, 1.0, 1.0, 1.0))
    rng, known, found = np.random.default_rng([seed, kappa]), [], {}
    best = {K: c.best_beta(K, 1.0, 0.0, 0.0, slack=0.0) for K in STEPS}
    for generations, K, other in product(passes, STEPS, OTHERS):
        at = other * best[K]
        found[K, other], choices = searched(kappa, c.alpha, c.eta, at, K, rng, known, count, generations)
        known.append(choices)
    bounds = {K: c.bound(K, 1.0, 0.0, 0.0, best[K]) for K in STEPS}
    least = {K: min(OTHERS, key=lambda other, K=K: found[K, other]) for K in STEPS}
    yield [kappa, "best of `star`", *(f"{bounds[K] / found[K, 1.0]:.3f}" for K in STEPS)]
    yield [kappa, "any", *(f"{bounds[K] / found[K, least[K]]:.3f} ({least[K]:.2g} β)" for K in STEPS)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    record.options(parser)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    columns = ["κ", "β", *(f"K = {K}" for K in STEPS)]
    # At κ = 2 the first few problems are the worst already, to the digits shown.
    kappas, count, passes = (KAPPAS[:1], 20, [1]) if options.quick else (KAPPAS, 400, [15, 20])
    found = (row for kappa in kappas for row in rows(kappa, options.seed, count, passes))
    record.table("worst-problems", columns, found, options.record, repeatable=True)


if __name__ == "__main__":
    main()
