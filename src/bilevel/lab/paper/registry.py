"""All experiments in the order of the paper, and their results in a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bilevel.lab.paper import fig1, fig2, fig3_features, fig3_reweighting, manifest, table1
from bilevel.lab.paper.experiment import Experiment
from bilevel.lab.paper.tables import Table, read_table

MODULES = (fig1, fig2, table1, fig3_features, fig3_reweighting)
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in MODULES}
GROUPS = {"fig3": ("fig3-features", "fig3-reweighting"), "all": tuple(EXPERIMENTS)}


def chosen(names: list[str]) -> list[Experiment]:
    """Return the selected experiments, each once and in the paper's order. Return all for an empty list."""
    wanted: set[str] = set()
    for name in names or ["all"]:
        if name not in EXPERIMENTS and name not in GROUPS:
            known = ", ".join([*EXPERIMENTS, "fig3"])
            fix = f"choose from {known}, or give no name to run all of them"
            raise ValueError(f"there is no experiment {name!r}: {fix}")
        wanted.update(GROUPS.get(name, (name,)))
    return [experiment for name, experiment in EXPERIMENTS.items() if name in wanted]


@dataclass(frozen=True)
class Results:
    """Tables of a folder by file name, and the manifests by experiment."""

    tables: dict[str, Table]
    manifests: dict[str, dict[str, Any]]

    def __getitem__(self, table: str) -> Table:
        return self.tables[table]

    def setting(self, experiment: str, name: str) -> Any:
        return self.manifests[experiment]["origin"]["settings"][name]


def read_results(folder: Path) -> Results:
    """Return the tables of every experiment that has a valid manifest."""
    tables, manifests = {}, {}
    for name, experiment in EXPERIMENTS.items():
        if found := manifest.read(experiment, folder):
            manifests[name] = found
            tables |= {table: read_table(folder / table) for table in experiment.tables}
    return Results(tables, manifests)
