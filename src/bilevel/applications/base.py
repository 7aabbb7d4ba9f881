"""What all applications are: a task, methods and baselines on it, scores with a spread over seeds, and a picture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # loaded by those who draw
    from matplotlib.figure import Figure

    from bilevel.problems.instance import Instance


class Outcome(NamedTuple):
    """Of one seed."""

    scores: Mapping[str, Mapping[str, float]]  # by method or baseline, then by measure
    seen: Any = None  # what the picture is made of


@dataclass(frozen=True)
class Application:
    """One of those that `bilevel examples` runs.

    Args:
        name: as the command line has it, such as "few-shot".
        title: what it does, in a line.
        task: from a seed to the task itself: problem, start, data and yardstick, to be run by `bl.run`.
        steps: the number of outer steps that its table was made with.
        trial: (seed, steps, progress) ↦ `Outcome`. All work shrinks with `steps`, also that of the baselines; data and
            starts depend on the seed. `progress` is for `bl.run`.
        draw: fills an empty figure from the outcomes, one for every seed.
        better: the measures whose larger values are better; for the others it is the smaller ones.
        neutral: those of which neither is: they describe, and no method is marked as the best of them.
        source: where the data come from, in a line.
    """

    name: str
    title: str
    task: "Callable[[int], Instance]"
    steps: int
    trial: Callable[[int, int, bool], Outcome]
    draw: "Callable[[Figure, list[Outcome]], None]"
    better: tuple[str, ...] = ()
    neutral: tuple[str, ...] = ()
    source: str = ""
