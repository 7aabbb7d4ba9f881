"""Pictures of runs, sweeps and certificates, in one look. Each function returns matplotlib's axes, to change or save.

    bl.plot.trace(result)[0].figure.savefig("run.png")

They are drawn into the axes that are given, or into a new figure. That is one of `matplotlib.pyplot` only in a notebook
and where pyplot was imported, which then can show it; elsewhere nothing is left behind. matplotlib is loaded by the
first picture.
"""

from typing import TYPE_CHECKING

from bilevel.namespaces import lazy_names

if TYPE_CHECKING:
    from bilevel.plot.bounds import certificate as certificate
    from bilevel.plot.curves import hyperparameters as hyperparameters, trace as trace
    from bilevel.plot.runs import sweep as sweep
    from bilevel.plot.spread import weights as weights
else:
    _HOMES = {
        "certificate": "bilevel.plot.bounds",
        "hyperparameters": "bilevel.plot.curves",
        "sweep": "bilevel.plot.runs",
        "trace": "bilevel.plot.curves",
        "weights": "bilevel.plot.spread",
    }
    __getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
