"""Type of all experiments: settings in, tables out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bilevel.data import Examples, Mnist
from bilevel.data.directories import Directory
from bilevel.lab.paper.tables import Table


@runtime_checkable
class Report(Protocol):
    """Report the progress of an experiment, from 0 to 1, and its current task."""

    def __call__(self, done: float, doing: str = "") -> None: ...


@dataclass(frozen=True)
class Options:
    """Options of the command line that experiments depend on."""

    quick: bool = False
    seeds: int | None = None  # how many; None: as many as fit the time
    data: Directory = None
    download: bool = False


@dataclass(frozen=True)
class Experiment:
    """Experiment for one figure or table of the paper.

    `settings(options)` is everything that the tables depend on except the data, as plain JSON values.
    `load(options)` reads the data, if there are any. `run(settings, inputs, report)` returns the tables by
    file name.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    settings: Callable[[Options], dict[str, Any]]
    run: Callable[[dict[str, Any], Any, Report], dict[str, Table]]
    load: Callable[[Options], Examples | Mnist] | None = None
