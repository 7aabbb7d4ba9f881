"""Problem that can be run: its start, data and step sizes, and a measure of x."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from optax import tree

from bilevel.batch import Batch
from bilevel.checks import (
    check_callable,
    check_kind,
    check_matrix,
    check_positive,
    check_problem,
    check_text,
    variables,
)
from bilevel.data.examples import Examples
from bilevel.problem import Problem
from bilevel.theory.verification.reference import exact
from bilevel.types import PyTree

STATIONARITY = "‖∇Φ(x)‖"


@dataclass(frozen=True, eq=False)
class Instance:
    """Problem with a start, data and a yardstick.

        bl.run(solver, instance.x0, instance.y0, data=instance.data, steps=1000)

    Args:
        name: its name.
        problem: the two objectives.
        x0: the first x.
        y0: the first y.
        data: a `Batch` or a stream; `None` for objectives without data.
        L: the smoothness of g in y, for inner steps of 1/L; an assumption if there is no such constant.
        measure: the yardstick, a function of x: smaller is better. `None` if there is none.
        label: a description of the yardstick.
    """

    name: str
    problem: Problem
    x0: PyTree
    y0: PyTree
    data: Any = None
    L: float = 1.0
    measure: Callable[[PyTree], Any] | None = None
    label: str = ""

    def __post_init__(self) -> None:
        check_text(self.name, "name", '"mine"')
        check_problem(self.problem)
        check_positive(self.L, "smoothness L", traced=False)
        variables(self.x0, self.y0)
        if self.measure is not None:
            check_callable(self.measure, "measure", 1, "a function of x", "lambda x: jnp.linalg.norm(x)")


def stationarity(problem: Problem, y0: PyTree, data: Batch | None = None) -> Callable[[PyTree], Any]:
    """Return x ↦ ‖∇Φ(x)‖, exact if g is strongly convex in y. The search for y*(x) starts at `y0`."""
    return lambda x: tree.norm(exact(problem, x, y0, data).hypergradient)


def checked(train: Any, valid: Any, targets: str = "labels") -> Iterator[tuple[str, Examples]]:
    """Yield "train" and "valid" with their examples; raise unless they have a matrix of inputs."""
    for name, examples in (("train", train), ("valid", valid)):
        fix = f"pass bl.data.Examples(inputs, {targets})"
        check_matrix(check_kind(examples, Examples, name, "a bl.data.Examples", fix).inputs, f"{name}.inputs")
        yield name, examples
