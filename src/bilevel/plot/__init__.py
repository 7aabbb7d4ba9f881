"""Plots of runs, sweeps and certificates in one style. Each function returns matplotlib axes.

    bl.plot.trace(result)[0].figure.savefig("run.png")

A function draws into the given axes, or into a new figure. The figure belongs to `matplotlib.pyplot` only in
a notebook or if pyplot was imported, and pyplot can then show it. The first plot imports matplotlib.
"""

from typing import TYPE_CHECKING

from bilevel.namespaces import lazy_names

if TYPE_CHECKING:
    from bilevel.plot.bounds import certificate as certificate
    from bilevel.plot.curves import hyperparameters as hyperparameters, sweep as sweep, trace as trace
    from bilevel.plot.spread import weights as weights
else:
    _HOMES = {
        "certificate": "bilevel.plot.bounds",
        "hyperparameters": "bilevel.plot.curves",
        "sweep": "bilevel.plot.curves",
        "trace": "bilevel.plot.curves",
        "weights": "bilevel.plot.spread",
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
