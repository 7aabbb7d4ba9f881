"""Two experiments that take no time, in place of the paper's: for trying what the command line does about faults."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bilevel.lab.paper import registry
from bilevel.lab.paper.experiment import Experiment, Options
from bilevel.lab.paper.plots import DRAWINGS
from bilevel.lab.paper.report.content import CAPTIONS

WRITES = 8  # table and manifest of one and of two, a figure as png and as svg, two reports
OF_EACH_KIND = (0, 3, 5, 7)  # a table, a manifest, a figure, a report


def toy(name: str, value: float) -> Experiment:
    def settings(options: Options) -> dict[str, Any]:
        return {"value": value, "seeds": options.seeds or 1}

    def run(settings: dict[str, Any], inputs: Any, report: Any) -> dict[str, Any]:
        return {f"{name}.csv": {"x": np.arange(3.0) * settings["value"]}}

    return Experiment(name, f"Toy {name}", (f"{name}.csv",), settings, run)


def play() -> dict[str, Experiment]:
    """Replaces the paper's experiments, for good: tests put them back."""
    registry.EXPERIMENTS.clear()
    registry.EXPERIMENTS |= {"one": toy("one", 1.0), "two": toy("two", 2.0)}
    registry.GROUPS["all"] = ("one", "two")
    DRAWINGS["one"] = {"one_left": lambda results: Figure(figsize=(1, 1))}
    CAPTIONS["one_left"] = "Nothing."
    return registry.EXPERIMENTS
