"""Of docs/how-to/."""

import inspect
import math

import jax.numpy as jnp
import numpy as np
from elsewhere import problem
from language_model import Size
from origins import AtLeast, AtMost, Claims, Told, Values, cell, column, number, rows, written

import bilevel as bl
from bilevel.loop import program
from bilevel.loop.diagnose import divergence, hook as diagnose_hook, measurements
from bilevel.loop.recovery import snapshots
from bilevel.row_weights import fit as weighing
from bilevel.solvers.parts import line_search
from bilevel.theory.estimation import explanation

from .applications import trusted_alone_rank_best

MIB = 2**20
ROUNDING = float(np.finfo(np.float32).eps)
POD, TUNING_FREE = "benchmarks/pod.py", "benchmarks/tuning_free.py"


def modeled_steps() -> Values:
    """Milliseconds of a step that benchmarks/pod.py starts from, which are those of the table to a hundredth."""
    taken = written(POD, r"AID=(\S+),SOBA=(\S+),ITD=(\S+)\"")
    for seconds, method in zip(taken, ("AID", "SOBA", "ITD"), strict=True):
        assert math.isclose(
            1e3 * seconds, cell("transformer", "under `lax.scan`, `bl.run`", method), rel_tol=0.01
        )
    return tuple(1e3 * seconds for seconds in taken)


def dearest() -> tuple[float, ...]:
    """The two largest κ among the quadratics."""
    names = (row["quadratics"].removeprefix("κ = ") for row in rows("tuning-free-quadratics"))
    return tuple(sorted(number(name) for name in names if name.isdecimal())[-2:])


CLAIMS: Claims = {
    "docs/how-to/advise.md": {
        "and is 0.05 where the run ends": lambda: written(
            "tests/theory/estimation/hidden_problems.py", r"Inner\(H=(\S+) \* identity"
        ),
        "at most 10 %": explanation.TOLERATED_BIAS,
    },
    "docs/how-to/diagnose.md": {
        "at most 2 % of the gradients": diagnose_hook.SHARE,
        "stop at a residual of 10⁻³": measurements.TOL,
        "Where 50 products leave more than 5 %": (measurements.SOLVE, measurements.SOLVED),
    },
    "docs/how-to/elsewhere.md": {
        r"+ 0.05\,\|x\|^2": lambda: written("benchmarks/elsewhere/problem.py", r"/ 2 \+ (\S+) \* np.sum\(x"),
        "50 steps on x cost 50 steps on y rather than 2,500": (
            problem.OUTER,
            problem.OUTER,
            problem.INNER * problem.OUTER,
        ),
        "all end within 10⁻⁶ of the minimizer": lambda: AtMost(
            max(column("side-by-side", "from the minimizer"))
        ),
        "runs with torch 2.13, with": lambda: cell("side-by-side", "PyTorch", "version"),
        "runs with NumPy 2.4": lambda: written("docs/measured/peers-aid.md", r"numpy (\d+\.\d+)"),
        "runs with torch 2.13. ##": lambda: cell("side-by-side", "PyTorch", "version"),
        "an error of 5 × 10⁻⁶": Told("found with hypertorch, which no package index has"),
    },
    "docs/how-to/large-models.md": {
        "steps of 10⁻⁴ would be lost": AtLeast(float(jnp.finfo(jnp.bfloat16).eps) / 2),
        "12 layers × 768 (91.6 million": (Size().layers, Size().width, Size().parameters),
        "within 5 % of those by hand": lambda: written(
            "benchmarks/transformer.py", r"tolerance = exact .* else (\S+)"
        ),
        "From 128 MiB of state on": program.LONG_STEPS / MIB,
        "**Why 0.5.**": lambda: written("examples/domain_weights.py", r"bl.projected\((\S+),"),
        "Adam at 0.02 and at 0.05": Told("rates that were tried once, and are not kept"),
    },
    "docs/how-to/many-devices.md": {
        "a step of 91.6 million": lambda: written(POD, r'"--parameters", type=float, default=(\S+),'),
        "AID 151 ms, SOBA 105 ms, ITD 81 ms": modeled_steps,
        "10 µs a hop and 50 GB/s": lambda: (
            1e6 * written(POD, r'"--latency", type=float, default=(\S+),'),
            1e-9 * written(POD, r'"--bandwidth", type=float, default=(\S+),'),
        ),
        "10 µs a hop for every": lambda: 1e6 * written(POD, r'"--latency", type=float, default=(\S+),'),
        "8,192 tokens": Size().sequences * Size().tokens,
    },
    "docs/how-to/memory.md": {
        "at most 1.05 times from 1 MiB": lambda: (
            written("tests/loop/test_memory.py", r"needed\(chunk\) <= (\S+) \*"),
            program.SMALL / MIB,
        ),
        "at most 2 % of the time": 1 / snapshots.REST,
        "states beyond 1 MiB": program.SMALL / MIB,
    },
    "docs/how-to/optimizers.md": {
        "below 10⁻⁴": lambda: (
            written("docs/how-to/optimizers.md", r"`optax.adam\(rate, eps_root=(\S+)\)`") ** 0.5
        ),
    },
    "docs/how-to/running.md": {
        "beyond 0.9 · 2/L": (divergence.NEAR, 2),
        "states beyond 1 MiB": program.SMALL / MIB,
    },
    "docs/how-to/see-a-run.md": {"states of up to 1 MiB": program.SMALL / MIB},
    "docs/how-to/sklearn.md": {
        "40 % of the labels are wrong": trusted_alone_rank_best,
        "0.4 of it for networks": weighing.NETWORK_RIDGE,
        "16,384 rows": weighing.LARGEST,
    },
    "docs/how-to/step-sizes.md": {"1e-2 is a start": Told("advice about where to begin a search")},
    "docs/how-to/troubleshooting.md": {
        "2.30 for ten": math.log(10),
        "wrong by 16 to 157 per cent": Told("measured by others, in the thread that is linked"),
        "at its maximum (1,000)": inspect.signature(bl.hoag).parameters["max_inner_steps"].default,
        "at about 10⁻⁷ of their terms": ROUNDING,
        "a CG tolerance of 10⁻⁸": AtLeast(ROUNDING),
    },
    "docs/how-to/tuning-free.md": {
        r"\Phi + s + 10^{-4}\langle": line_search.SUFFICIENT,
        r"$s = 0.85\,(s": line_search.MEMORY,
        r"The first length is $0.1\,": line_search.FIRST,
        r"$s' = 0.85\,(s": line_search.MEMORY,
        r"$\beta \le 2(1-10^{-4})": (2, 1, line_search.SUFFICIENT),
        r"\le 0.85\,(s+\Phi) + 0.15\,\Phi' \le s + \Phi - 0.15\cdot 10^{-4}": (
            line_search.MEMORY,
            1 - line_search.MEMORY,
            (1 - line_search.MEMORY) * line_search.SUFFICIENT,
        ),
        "20,000 oracle calls": lambda: written(TUNING_FREE, r'"--budget", type=int, default=(\S+),'),
        r"\le 10^{-3}$ of its start": lambda: written(TUNING_FREE, r"relative <= (\S+)\)"),
        r"$10^{-3}\|x\|^2$": lambda: written(TUNING_FREE, r"validation = .* \+ (\S+) \* jnp.sum"),
        "κ = 1000 and 10⁴": dearest,
    },
}
