"""Type of an application: a task, methods and baselines, scores with a spread over seeds, and a picture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # matplotlib is loaded when a picture is drawn
    from matplotlib.figure import Figure

    from bilevel.problems.instance import Instance


class Outcome(NamedTuple):
    """Results of one seed."""

    scores: Mapping[str, Mapping[str, float]]  # by method or baseline, then by measure
    seen: Any = None  # data for the picture


@dataclass(frozen=True)
class Application:
    """Application that `bilevel examples` runs.

    Args:
        name: the name on the command line, such as "few-shot".
        title: one line on its purpose.
        task: a function from a seed to the task: problem, start, data and measure, for `bl.run`.
        steps: the number of outer steps of its published table.
        trial: (seed, steps, progress) ↦ `Outcome`. All work shrinks with `steps`, also the baselines; data and starts
            depend on the seed. `progress` is for `bl.run`.
        draw: a function that fills an empty figure from the outcomes, one per seed.
        better: the measures with better larger values; for the others, smaller is better.
        neutral: the measures that only describe; no method is marked as the best.
        source: one line on the origin of the data.
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
