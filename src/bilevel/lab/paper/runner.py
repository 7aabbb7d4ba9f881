"""Runs experiments into a folder, and does not run again what is already there."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bilevel.lab.paper import manifest
from bilevel.lab.paper.experiment import Experiment, Options, Report
from bilevel.lab.paper.tables import write_table


@dataclass(frozen=True)
class Job:
    """An experiment with its settings made up and its data read: nothing is left that could be refused."""

    experiment: Experiment
    settings: dict[str, Any]
    inputs: Any
    origin: dict[str, Any]
    out: Path

    @property
    def done(self) -> bool:
        return manifest.holds(self.experiment, self.out, self.origin)


def prepare(experiment: Experiment, options: Options, out: Path) -> Job:
    settings = experiment.settings(options)
    inputs = experiment.load(options) if experiment.load else None
    return Job(experiment, settings, inputs, manifest.origin(settings, inputs), out)


def perform(job: Job, report: Report) -> float:
    """Runs the job and writes its tables; the seconds it took."""
    # Until the new tables are complete, nothing must vouch for the old ones.
    manifest.path_of(job.experiment, job.out).unlink(missing_ok=True)
    began = time.perf_counter()
    tables = job.experiment.run(job.settings, job.inputs, report)
    if set(tables) != set(job.experiment.tables):
        raise RuntimeError(
            f"{job.experiment.name} made {sorted(tables)}, but promised {job.experiment.tables}"
        )
    for name, table in tables.items():
        write_table(job.out / name, table)
    seconds = time.perf_counter() - began
    source = None if job.inputs is None else job.inputs.source
    manifest.write(job.experiment, job.out, job.origin, source, seconds)
    return seconds
