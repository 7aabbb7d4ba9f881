"""Pictures of runs, sweeps and certificates, in one look. Each function returns matplotlib's axes, to change or save.

    bl.plot.trace(result)[0].figure.savefig("run.png")

They are drawn into the axes that are given, or into a new figure. That is one of `matplotlib.pyplot` only in a notebook
and where pyplot was imported, which then can show it; elsewhere nothing is left behind. matplotlib is loaded by the
first picture.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bilevel.plot.bounds import certificate as certificate
    from bilevel.plot.curves import hyperparameters as hyperparameters, trace as trace
    from bilevel.plot.runs import sweep as sweep
    from bilevel.plot.spread import weights as weights
else:
    _HOMES = {
        "certificate": "bounds",
        "hyperparameters": "curves",
        "sweep": "runs",
        "trace": "curves",
        "weights": "spread",
    }
    __all__ = sorted(_HOMES)  # noqa: PLE0605

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(
                f"module 'bilevel.plot' has no attribute {name!r}: it has {', '.join(__all__)}"
            )
        globals()[name] = getattr(import_module(f"bilevel.plot.{_HOMES[name]}"), name)
        return globals()[name]

    def __dir__() -> list[str]:
        return __all__
