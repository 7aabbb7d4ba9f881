"""List of all experiments, in the order of the paper."""

from bilevel.lab.paper import fig1, fig2, fig3_features, fig3_reweighting, table1
from bilevel.lab.paper.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (fig1, fig2, table1, fig3_features, fig3_reweighting)
}
GROUPS = {"fig3": ("fig3-features", "fig3-reweighting"), "all": tuple(EXPERIMENTS)}


def chosen(names: list[str]) -> list[Experiment]:
    """Return the selected experiments, each once and in the paper's order. Return all for an empty list."""
    wanted: set[str] = set()
    for name in names or ["all"]:
        if name not in EXPERIMENTS and name not in GROUPS:
            known = ", ".join([*EXPERIMENTS, "fig3"])
            raise ValueError(
                f"there is no experiment {name!r}: choose from {known}, or give no name to run all of them"
            )
        wanted.update(GROUPS.get(name, (name,)))
    return [experiment for name, experiment in EXPERIMENTS.items() if name in wanted]
