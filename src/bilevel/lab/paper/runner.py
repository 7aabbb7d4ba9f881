"""Runner of experiments into a folder. It skips those whose tables exist."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bilevel.atomic_files import Unsaved
from bilevel.lab.paper import manifest
from bilevel.lab.paper.experiment import Experiment, Options, Report
from bilevel.lab.paper.tables import Table, write_table


class Unfiled(Exception):
    """Error for an experiment that ran, but whose tables could not be written; they are in `tables`."""

    def __init__(self, reason: OSError, tables: dict[str, Table]):
        super().__init__(str(reason))
        self.tables = tables


@dataclass(frozen=True)
class Job:
    """Experiment with its settings and data, after all checks."""

    experiment: Experiment
    settings: dict[str, Any]
    inputs: Any
    origin: dict[str, Any]
    out: Path

    @property
    def done(self) -> bool:
        """Return whether the tables in `out` are intact and were computed from exactly this origin."""
        found = manifest.read(self.experiment, self.out)
        return found is not None and found["origin"] == self.origin

    @property
    def shortens(self) -> bool:
        """Return whether its tables would replace tables of the full protocol."""
        found = manifest.read(self.experiment, self.out)
        return not (found is None or self.done or manifest.departures(self.experiment, found))


def prepare(experiment: Experiment, options: Options, out: Path) -> Job:
    settings = experiment.settings(options)
    inputs = experiment.load(options) if experiment.load else None
    return Job(experiment, settings, inputs, manifest.origin(settings, inputs), out)


def perform(job: Job, report: Report) -> float:
    """Run the job, write its tables and return its seconds. Raise `Unfiled` if they cannot be written."""
    # Until the new tables are complete, no manifest may declare the old ones valid.
    old = manifest.path_of(job.experiment, job.out)
    try:
        old.unlink(missing_ok=True)
    except OSError as error:
        raise Unsaved(old, error.strerror or str(error), error.errno) from error
    began = time.perf_counter()
    tables = job.experiment.run(job.settings, job.inputs, report)
    if set(tables) != set(promised := job.experiment.tables):
        raise RuntimeError(f"{job.experiment.name} made {sorted(tables)}, but promised {promised}")
    seconds = time.perf_counter() - began
    source = None if job.inputs is None else job.inputs.source
    try:
        for name, table in tables.items():
            write_table(job.out / name, table)
        manifest.write(job.experiment, job.out, job.origin, source, seconds)
    except OSError as error:
        raise Unfiled(error, tables) from error
    return seconds
