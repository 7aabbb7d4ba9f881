"""Of docs/about/."""

import math

import numpy as np
from faults import kills
from origins import About, AtLeast, ByTest, Claims, Told, cell, written
from race.tasks import FULL

from bilevel.data import counties, county_digests, download
from bilevel.data.counties import COUNTIES, bundled_counties
from bilevel.data.digits import _bundled
from bilevel.lab.paper import fig3_features, fig3_reweighting, quadratic_runs, table1
from bilevel.theory.certificates.certificate import SLACK

from .start import MLP

LOADERS = r"ROWS, SIZE = (\S+), (\S+)"
REFERENCE = "tests/data/test_data_reference.py"  # compares longitudes in millionths of a degree


def county_multiples() -> np.ndarray:
    """The common factor of each bundled county's five counts."""
    own = bundled_counties()
    counts = np.rint(np.exp(np.column_stack([own.inputs[:, :4], own.targets + own.inputs[:, 0]])))
    return np.gcd.reduce(counts.astype(int), axis=1)


def rounded_degrees() -> float:
    return written(REFERENCE, r"longitude, rtol=0, atol=(\d)\)") * 1e-6


def ridge() -> tuple[int, About]:
    """The penalties of the last task, and the condition number of the curvature at its start."""
    task = FULL["ridge"]()
    inputs = task.train[0]
    curvatures = np.linalg.eigvalsh(inputs.T @ inputs / len(inputs) + np.diag(np.exp(task.x0)))
    return len(task.x0), About(curvatures[-1] / curvatures[0])


def images() -> tuple[int, int]:
    digits = _bundled()
    return len(digits.train), len(digits.test)


CLAIMS: Claims = {
    "docs/about/benchmarks.md": {
        "for 1,000 steps of reweighting": lambda: written("docs/measured/overhead-scan.md", r"--steps (\d+)"),
        "chunks of 1,000 steps": lambda: written("benchmarks/soak.py", r"every: int = (\d+)"),
        "the reweighting task (2,000 × 784 training": lambda: (
            written("tests/solvers/test_cost.py", r"TRAIN, VALID = (\d+), \d+"),
            written("tests/solvers/test_cost.py", r"real\(n, (\d+)\)"),
        ),
        "ITD 1.75, SOBA 2.27, AID 3.27": lambda: tuple(
            cell("README.md", f"`bl.{name}`", "operations per step") for name in ("itd", "soba", "aid")
        ),
        "0.78 MiB each on the network of 203,530": (4 * MLP / 2**20, MLP),
        "minibatches of 512 from 60,000 rows": lambda: written("benchmarks/loaders.py", LOADERS)[::-1],
        "the batch's copy (3.2 MB)": lambda: 2 * 4 * 784 * written("benchmarks/loaders.py", LOADERS)[1] / 1e6,
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
        "no more than 64 MiB": download.LARGEST / 2**20,
        "(5,000 images)": lambda: sum(images()),
        "3,107 lines": COUNTIES,
        "The 3,064 bundled counties must be found in their rows to within 1e-5": lambda: (
            len(bundled_counties().rows),
            counties.TOLERANCE,
        ),
        "which they must meet to 1e-9": county_digests.CLOSE,
        "a change below 1e-9": county_digests.CLOSE,
        "5,000 images of MNIST's training set": lambda: sum(images()),
        "4,000 for training, 1,000 for testing": images,
        "(INCOME/POP is below 32) that holds to Q = 11 million": (
            32,
            AtLeast(math.sqrt(1 / (2 * math.ulp(math.nextafter(32, 0))))),
        ),
        "1/ζ(5) = 96.4 %": (1, 5, 1 / sum(n**-5 for n in range(1, 1000))),
        "3,008 of the 3,107 counties": ByTest(REFERENCE),
        "forces m = 1: 2,980 counties": lambda: (1, np.sum(county_multiples() == 1)),
        "from 0.517 to 0.910": Told(
            "needs the homicide table, which scripts/build_bundled_space_ga.py reads"
        ),
        "That keeps **3,064 counties**": lambda: len(bundled_counties().rows),
        "all five counts of all 3,064 counties": lambda: len(bundled_counties().rows),
        "at most 5e-6 degrees, 0.6 m": lambda: (
            rounded_degrees(),
            rounded_degrees() * 40_075_017 / 360,  # meters around the equator
        ),
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
}
