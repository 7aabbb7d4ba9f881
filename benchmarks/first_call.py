"""How long one waits before the first step: for the import, and for every solver's first `bl.run`.

    python benchmarks/first_call.py [--rounds 5] [--only aid soba ...]

Importing: fresh processes, all of them in every round, medians over the rounds, and the median of (each / `import
jax`) in the same round. First steps: fresh processes, all solvers in each of three rounds, medians; the clock starts
when the package is loaded and the data are on the device, and stops when `bl.run(solver, ..., steps=1)` has returned,
so it is Python's work, tracing, compiling and one step. The task is MNIST-sized reweighting (2,000 × 784 training
rows, 500 validation rows, MLP 784-256-10, one weight per training row). Methods that carry a copy of y for every
entry of x get one weight per class; meta-learners, whose x is the network they start from, the rows as four tasks;
those that remember a gradient per block of rows, four blocks. The inner loops of HOAG and of the tuning-free method,
which end when y has settled, are cut short, by few steps and by an accuracy of 1: how long they take is no matter of
the first call. The last two columns are how often Python ran the user's functions, that is how often JAX traced them.
No compilation cache is used.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import wraps

import record

IMPORTS = {
    "import jax": "import jax",
    "import jax, optax, equinox": "import jax, optax, equinox",
    "import bilevel": "import bilevel",
    "import bilevel, and bl.Problem, bl.aid": "import bilevel as bl; bl.Problem, bl.aid",
    "import bilevel, and bl.Problem, bl.aid, bl.run": "import bilevel as bl; bl.Problem, bl.aid, bl.run",
    "from bilevel import *": "from bilevel import *",
}
SOLVERS = {  # every public one, with what it cannot do without and its defaults elsewhere
    "acc_f2ba": ((0.05, 1e-3), dict(penalty=10.0, radius=1.0)),
    "aid": ((0.05, 0.05, 1e-3), {}),
    "bda": ((0.05, 1e-3), dict(inner_steps=5)),
    "bome": ((0.05, 1e-3), {}),
    "d_tfbo": ((), {}),
    "darts": ((0.05, 1e-3), dict(virtual_step=0.05)),
    "darts_first_order": ((0.05, 1e-3), {}),
    "f2ba": ((0.05, 1e-3), dict(penalty=10.0)),
    "f2sa": ((0.05, 1e-3), dict(penalty=10.0)),
    "f2sa_p": ((0.05, 1e-3), dict(penalty=10.0)),
    "f3sa": ((0.05, 1e-3), dict(penalty=10.0)),
    "fomaml": ((0.05, 1e-3), {}),
    "forward_itd": ((0.05, 1e-3), {}),
    "fsla": ((0.05, 0.05, 1e-3), {}),
    "g_pbgd": ((0.05, 1e-3), dict(penalty=10.0)),
    "hoag": ((0.05, 1e-3), dict(max_inner_steps=20, max_adjoint_steps=10)),
    "iaptt": ((0.05, 1e-3), dict(inner_steps=5)),
    "imaml": ((0.05, 1e-3), dict(proximal_weight=1.0)),
    "itd": ((0.05, 1e-3), {}),
    "maml": ((0.05, 1e-3), {}),
    "meha": ((0.05, 1e-3), dict(penalty=10.0, proximal_step=1.0)),
    "mrbo": ((0.05, 0.05, 1e-3), {}),
    "pzobo": ((0.05, 1e-3), {}),
    "qnbo": ((0.05, 1e-3), {}),
    "reptile": ((0.05, 1e-3), {}),
    "rtho": ((0.05, 1e-3), {}),
    "s_tfbo": ((), {}),
    "saba": ((0.05, 0.05, 1e-3), {}),
    "sama": ((0.05, 1e-3), {}),
    "soba": ((0.05, 0.05, 1e-3), {}),
    "srba": ((0.05, 0.05, 1e-3), {}),
    "stocbio": ((0.05, 0.05, 1e-3), {}),
    "sustain": ((0.05, 0.05, 1e-3), {}),
    "tuning_free": ((), dict(tol=1.0)),
    "v_pbgd": ((0.05, 1e-3), dict(penalty=10.0)),
    "vrbo": ((0.05, 0.05, 1e-3), {}),
}
META = ("fomaml", "imaml", "maml", "reptile")
PER_CLASS = ("forward_itd", "rtho")
BLOCKS = ("saba", "srba")  # these remember a gradient per fixed block of rows
ENVIRONMENT = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "0"}


def seconds_of(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
    return time.perf_counter() - began


def importing(rounds: int, names: list[str]):
    seconds_of(IMPORTS[names[-1]])  # writes the bytecode
    idle = statistics.median(seconds_of("pass") for _ in range(rounds))
    times = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            times[name].append(seconds_of(IMPORTS[name]) - idle)
    for name, measured in times.items():
        ratio = statistics.median(a / b for a, b in zip(measured, times["import jax"], strict=True))
        yield f"`{name}`", f"{statistics.median(measured):.2f}", f"{ratio:.2f}"


def first_step(name: str) -> dict:
    """What is measured in a process of its own."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import bilevel as bl
    from bilevel.problems.reweighting import PROBLEM, initial_mlp, losses

    calls = {"f": 0, "g": 0}

    def counted(letter, function):
        @wraps(function)
        def called(*arguments, **named):
            calls[letter] += 1
            return function(*arguments, **named)

        return called

    per_class = lambda x, y, batch: jnp.mean(jax.nn.sigmoid(x)[batch.targets] * losses(y, batch))
    plain = lambda x, y, batch: jnp.mean(losses(y, batch))
    rng = np.random.default_rng(0)
    y0 = jax.tree.map(jnp.asarray, initial_mlp(784, 256, 10, seed=0))
    x0, inner = jnp.zeros(2000, jnp.float32), PROBLEM.inner
    lead = ()
    if name in META:
        x0, inner, lead = y0, plain, (4,)
    elif name in PER_CLASS:
        x0, inner = jnp.zeros(10, jnp.float32), per_class
    rows = lambda n: bl.data.Examples(
        rng.normal(size=(*lead, n, 784)).astype("float32"), rng.integers(0, 10, (*lead, n)).astype("int32")
    )
    count = lambda n: n // 4 if lead else n
    data = jax.block_until_ready(
        jax.tree.map(jnp.asarray, bl.Batch(inner=rows(count(2000)), outer=rows(count(500))))
    )
    stream = bl.blocks(data, 500) if name in BLOCKS else data
    make, run, (positional, named) = getattr(bl.solvers, name), bl.run, SOLVERS[name]
    levels = ("inner", "adjoint", "outer") if len(positional) == 3 else ("inner", "outer")
    named = dict(zip(levels, positional, strict=False), **named)
    problem = bl.Problem(inner=counted("g", inner), outer=counted("f", plain))

    began = time.perf_counter()
    result = run(make(problem, **named), x0, y0, data=stream, steps=1)
    jax.block_until_ready(result.x)
    first = time.perf_counter() - began
    assert result.steps == 1, result.status
    began = time.perf_counter()
    jax.block_until_ready(run(make(problem, **named), x0, y0, data=stream, steps=1).x)
    return {"first": first, "second": time.perf_counter() - began, **calls}


def _said(name: str) -> str:
    command = [sys.executable, __file__, "--one", name]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    return ran.stdout.splitlines()[-1]


def first_steps(names: list[str], rounds: int) -> list[list[str]]:
    """Of every solver the medians over the rounds, the quickest first."""
    seen: dict[str, list[dict]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            seen[name].append(json.loads(_said(name)))
            print(f"{name}: {seen[name][-1]['first']:.2f} s", file=sys.stderr, flush=True)
    middle = lambda name, what: statistics.median(process[what] for process in seen[name])
    first = {name: middle(name, "first") for name in names}
    note = lambda name: (
        ", one weight per class" if name in PER_CLASS else ", four tasks" if name in META else ""
    )
    return [
        [
            f"`{name}`{note(name)}",
            f"{first[name]:.2f}",
            f"{first[name] / first['itd']:.2f}",
            f"{middle(name, 'second'):.3f}",
            *(str(seen[name][0][letter]) for letter in "fg"),
        ]
        for name in sorted(names, key=first.__getitem__)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=SOLVERS, metavar="SOLVER", help="and `itd`")
    parser.add_argument("--one", choices=SOLVERS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(first_step(given.one)))
        return
    rounds, only = (1, []) if given.quick else (given.rounds, given.only)
    if only is None or given.quick:
        rows = importing(rounds, list(IMPORTS)[: 1 if given.quick else None])
        record.table("imports", ("what", "seconds", "/ `import jax`"), rows, given.record)
    columns = ("solver", "first step, s", "/ `itd`", "the same again, s", "f traced", "g traced")
    names = list(SOLVERS if only is None else {"itd", *only})
    record.table("first-call", columns, first_steps(names, min(rounds, 3)), given.record)


if __name__ == "__main__":
    main()
