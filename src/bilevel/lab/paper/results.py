"""Contents of a folder of results: tables, and the manifests that document their origin."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bilevel.lab.paper import manifest
from bilevel.lab.paper.registry import EXPERIMENTS
from bilevel.lab.paper.tables import Table, read_table


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
        found = manifest.read(experiment, folder)
        if found is not None:
            manifests[name] = found
            tables |= {table: read_table(folder / table) for table in experiment.tables}
    return Results(tables, manifests)
