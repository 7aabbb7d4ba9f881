"""What AID makes of a network's curvature: data reweighting on MNIST with a perceptron.

    python benchmarks/curvature.py [--data FOLDER] [--seed 0] [--steps 300] [--rounds 5]

One weight for each of 1,000 training images, a fifth of which have wrong labels; 500 clean validation images; an MLP
with 64 hidden rectifiers. g is not convex in its parameters. All runs have the same start, five inner steps of size
0.5 and Adam with rate 0.1 on the logits of the weights; they differ in the adjoint alone.

"fresh" is the validation loss of a network trained with the weights found, from the common start, for 150 steps. The
residual is that of the system the adjoint works on, damped or not, and "v" its solution's norm; both are the largest of
the run, the first ten steps aside. Operations per step are the compiler's count for a step with one product, and
for each further product. Time is CPU time per step after the first 40, the median over rounds of the ratio to the
first row in the same round.
"""

import argparse
import statistics
import sys
import time
from itertools import islice

import jax
import numpy as np
import optax
import record
from optax import tree

import bilevel as bl
from bilevel import adjoints
from bilevel.data import mnist
from bilevel.lab.paper.fig3_reweighting import case, score
from bilevel.problems.reweighting import PROBLEM

INNER, INNER_STEPS, OUTER, TOL, MOST, RANK = 0.5, 5, 0.1, 1e-3, 10, 10
SIZES = {"train": 1_000, "valid": 500, "held_out": 500, "wrong": 0.2, "hidden": 64}
TIMED, BEFORE = 5, 40  # steps a round, and steps before the first round


def ways() -> dict[str, bl.Adjoint]:
    cg, damped, gauss_newton = adjoints.cg(TOL, MOST), adjoints.damped, adjoints.gauss_newton
    return {
        "one step": adjoints.one_step(INNER),
        "one step, Gauss–Newton": gauss_newton(INNER),
        "CG": cg,
        "CG, damped 0.01": damped(cg, 0.01),
        "CG, damped 0.1": damped(cg, 0.1),
        "MINRES": adjoints.minres(TOL, MOST),
        "CG, Gauss–Newton": gauss_newton(cg),
        "CG, Gauss–Newton, damped 0.01": damped(gauss_newton(cg), 0.01),
        "CG, Gauss–Newton, damped 0.1": damped(gauss_newton(cg), 0.1),
        "Nyström (k = 10), Gauss–Newton, 0.1": gauss_newton(adjoints.nystrom(RANK, 0.1)),
    }


def solver_with(adjoint: bl.Adjoint, inner_steps: int = INNER_STEPS) -> bl.Solver:
    return bl.aid(PROBLEM, inner=INNER, adjoint=adjoint, outer=optax.adam(OUTER), inner_steps=inner_steps)


def operations(function, *arguments) -> float:
    return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]


class Operations:
    """Of a step with so many products. XLA counts a loop's body once, so loops are put together from their parts."""

    def __init__(self, run):
        at = lambda y: PROBLEM.oracles.curvature(run.x0, y, run.data).shared()
        curvatures = {"H": lambda y: at(y).hessian, "G": lambda y: at(y).gauss_newton()}
        once = lambda product: operations(lambda y, v: product(y)(v), run.y0, run.y0)
        twice = lambda product: operations(lambda y, v: (lambda p: p(p(v)))(product(y)), run.y0, run.y0)
        self.gradient = operations(lambda y: PROBLEM.oracles.inner_gradient(run.x0, y, run.data), run.y0)
        self.product = {name: twice(product) - once(product) for name, product in curvatures.items()}
        self.step = {}
        for name, adjoint in {"H": adjoints.one_step(INNER), "G": adjoints.gauss_newton(INNER)}.items():
            solver = solver_with(adjoint, inner_steps=1)
            self.step[name] = operations(solver.step, solver.init(run.x0, run.y0, run.data), run.data)

    def of(self, curvature: str, products: float) -> float:
        more = (INNER_STEPS - 1) * self.gradient + (products - 1) * self.product[curvature]
        return self.step[curvature] + more


def products_taken(name: str, trace: dict) -> float:
    if "Nyström" in name:
        return RANK + 1
    return float(np.mean(trace["adjoint_steps"])) + 2 if "adjoint_steps" in trace else 1.0


def largest(values: np.ndarray) -> float:
    return float(np.max(values[min(10, len(values) - 1) :]))


def cell(value: float) -> str:
    return "overflows" if not np.isfinite(value) else f"{value:.2g}" if value < 1e4 else f"{value:.0e}"


def found(name: str, result: bl.Result, task, counted: Operations) -> list[str]:
    products = products_taken(name, result.trace)
    operations = counted.of("G" if "Gauss" in name else "H", products) / counted.of("H", 1)
    residual = result.trace.get("adjoint_residual")
    if result.status.code is bl.Code.DIVERGED:
        return [f"diverges at {result.steps}", "–", "–", "overflows", "–", f"{operations:.1f}"]
    scored = score(result, task)
    return [
        f"{scored['validation_loss']:.3f}",
        f"{float(task.instance.measure(result.x)):.3f}",
        f"{100 * scored['test_accuracy']:.1f} %",
        cell(largest(result.trace["v"])),
        "" if residual is None else cell(largest(residual)),
        f"{operations:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("--data", help="folder with the MNIST files; the bundled digits if left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    steps, rounds = (2, 1) if given.quick else (given.steps, given.rounds)
    task = case(mnist(given.data), given.seed, SIZES)
    run, counted, timed, rows = task.instance, Operations(task.instance), {}, {}
    norm = lambda state, info: {"v": tree.norm(state.v)}
    for name, adjoint in islice(ways().items(), 1 if given.quick else None):
        solver = solver_with(adjoint)
        result = bl.run(solver, run.x0, run.y0, data=run.data, steps=steps, record=norm)
        rows[name] = found(name, result, task, counted)
        program = jax.jit(lambda at, solver=solver: bl.scan(solver, at, run.data, steps=TIMED)[0].x)
        early = bl.run(
            solver, run.x0, run.y0, data=run.data, steps=min(BEFORE, steps), record=norm
        ).run.solver
        timed[name] = program, early
        jax.block_until_ready(program(early))
        print(name, rows[name], file=sys.stderr, flush=True)
    seconds = {name: [] for name in timed}
    for _ in range(rounds):
        for name, (program, at) in timed.items():
            began = time.process_time()
            jax.block_until_ready(program(at))
            seconds[name].append(time.process_time() - began)
    ratio = lambda name: statistics.median(
        took / base for took, base in zip(seconds[name], seconds["one step"], strict=True)
    )
    columns = ("adjoint", "outer loss", "fresh", "test accuracy", "‖v‖", "residual", "operations", "time")
    table = [[name, *row, f"{ratio(name):.1f}"] for name, row in rows.items()]
    record.table("curvature", columns, table, given.record)


if __name__ == "__main__":
    main()
