"""Miniatures of all experiments, run once: few κ, few steps, small made-up images."""

import jax
import numpy as np
import pytest

from bilevel.data import Examples, Mnist
from bilevel.lab.paper import fig1, fig2, fig3_features, fig3_reweighting, table1
from bilevel.lab.paper.experiment import Options
from bilevel.lab.paper.manifest import origin, write
from bilevel.lab.paper.registry import EXPERIMENTS
from bilevel.lab.paper.tables import write_table

MINIATURES = {
    "fig1": {"kappas": [1.5, 4.0, 12.0], "steps": 300},
    "fig2": {"kappas": [1.5, 4.0, 12.0], "steps": 300},
    "table1": {
        "kappas_of_bounds": [1e3, 1e4, 1e5],
        "kappas_of_runs": [1.5, 2.0],
        "epsilons": [0.6, 0.4],
        "counted_steps": 5,
    },
    "fig3-features": {"kappas": [3.0, 6.0], "steps": 40, "seeds": 2},
    "fig3-reweighting": {
        "train": 60,
        "valid": 30,
        "held_out": 20,
        "hidden": 8,
        "steps": 50,
        "seeds": {"ITD": 2, "AID": 1},
        "useful_steps": 25,
        "useful_rates": [0.1, 0.3],
    },
}
MODULES = {module.EXPERIMENT.name: module for module in (fig1, fig2, table1, fig3_features, fig3_reweighting)}


def quiet(done: float, doing: str = "") -> None:
    assert 0 <= done <= 1


@pytest.fixture(scope="session")
def digits() -> Mnist:
    """Images of ten pixels in which pixel c is bright for class c, and two pixels that are always blank."""
    rng = np.random.default_rng(0)

    def examples(count: int) -> Examples:
        labels = rng.integers(0, 10, count).astype(np.int32)
        bright = np.eye(10, dtype=np.float32)[labels] + 0.2 * rng.random((count, 10), dtype=np.float32)
        return Examples(np.pad(bright, ((0, 0), (1, 1))), labels, "made-up digits")

    return Mnist(examples(120), examples(50))


@pytest.fixture(scope="session")
def settings() -> dict[str, dict]:
    return {name: EXPERIMENTS[name].settings(Options()) | small for name, small in MINIATURES.items()}


@pytest.fixture(scope="session")
def inputs(digits) -> dict:
    return {"fig3-reweighting": digits, "fig3-features": fig3_features.load(Options())}


@pytest.fixture(scope="session")
def run(settings, inputs):
    """Runs a miniature: the tables by file name."""

    def run(name: str) -> dict:
        # optax.adam mixes dtypes in its bias correction, so strict promotion has to rest here.
        with jax.numpy_dtype_promotion("standard"):
            return MODULES[name].run(settings[name], inputs.get(name), quiet)

    return run


@pytest.fixture(scope="session")
def tables(run) -> dict:
    return {file: table for name in MINIATURES for file, table in run(name).items()}


@pytest.fixture(scope="session")
def fill(settings, inputs, tables):
    """Writes the miniatures' tables and manifests into a folder, as the runner does."""

    def fill(folder) -> None:
        for name, experiment in EXPERIMENTS.items():
            for file in experiment.tables:
                write_table(folder / file, tables[file])
            found = inputs.get(name)
            source = None if found is None else found.source
            write(experiment, folder, origin(settings[name], found), source, seconds=1.25)

    return fill
