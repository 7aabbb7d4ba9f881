"""Bilevel optimization on JAX: min over x of f(x, y*(x)), where y*(x) minimizes g(x, y).

These are the public names; `bl.solvers` has all solvers. Python loads a name when a program first uses it. So `import
bilevel` loads little except JAX, and a program loads only the solvers that it uses.
"""

from typing import TYPE_CHECKING

import bilevel.forks  # it starts to watch at import  # noqa: F401
from bilevel.namespaces import lazy_names

if TYPE_CHECKING:  # for readers, editors and type checkers; the tables below have the same names
    from bilevel import (
        adjoints as adjoints,
        data as data,
        hooks as hooks,
        plot as plot,
        problems as problems,
        prox as prox,
        solvers as solvers,
        theory as theory,
    )
    from bilevel.batch import Batch as Batch, Levels as Levels
    from bilevel.composition import composed as composed
    from bilevel.counting import Counts as Counts, oracle_calls as oracle_calls
    from bilevel.implicit import hypergradient as hypergradient
    from bilevel.loop.checkpoints.disk_runs import load as load
    from bilevel.loop.data.loaders import loaders as loaders
    from bilevel.loop.data.streams import blocks as blocks, epochs as epochs, iid as iid
    from bilevel.loop.devices.mesh_spec import sharded as sharded
    from bilevel.loop.errors import RunError as RunError
    from bilevel.loop.options import RunOptions as RunOptions
    from bilevel.loop.result import Result as Result
    from bilevel.loop.run import run as run
    from bilevel.loop.scan import scan as scan, warm_up as warm_up
    from bilevel.loop.state import RunState as RunState, start as start
    from bilevel.loop.status import Code as Code, Status as Status
    from bilevel.loop.sweep import Sweep as Sweep, sweep as sweep
    from bilevel.problem import Problem as Problem
    from bilevel.solvers import (
        aid as aid,
        f2sa as f2sa,
        hoag as hoag,
        imaml as imaml,
        itd as itd,
        maml as maml,
        saba as saba,
        soba as soba,
        stocbio as stocbio,
        tuning_free as tuning_free,
    )
    from bilevel.solvers.adjoints import Adjoint as Adjoint
    from bilevel.solvers.base import Info as Info, Solver as Solver
    from bilevel.solvers.fixed_points.preconditioner import fixed_preconditioner as fixed_preconditioner
    from bilevel.solvers.rules import Rule as Rule, projected as projected
    from bilevel.theory.estimation._advise import advise as advise
    from bilevel.theory.estimation.advice import Advice as Advice
else:
    _MODULES = ("adjoints", "data", "hooks", "plot", "problems", "prox", "solvers", "theory")
    _NAMES = {
        "batch": ("Batch", "Levels"),
        "composition": ("composed",),
        "counting": ("Counts", "oracle_calls"),
        "implicit": ("hypergradient",),
        "loop.checkpoints.disk_runs": ("load",),
        "loop.errors": ("RunError",),
        "loop.data.loaders": ("loaders",),
        "loop.options": ("RunOptions",),
        "loop.result": ("Result",),
        "loop.run": ("run",),
        "loop.scan": ("scan", "warm_up"),
        "loop.devices.mesh_spec": ("sharded",),
        "loop.state": ("RunState", "start"),
        "loop.status": ("Code", "Status"),
        "loop.data.streams": ("blocks", "epochs", "iid"),
        "loop.sweep": ("Sweep", "sweep"),
        "problem": ("Problem",),
        "solvers.adjoints": ("Adjoint",),
        "solvers.base": ("Info", "Solver"),
        "solvers.fixed_points.preconditioner": ("fixed_preconditioner",),
        "solvers.rules": ("Rule", "projected"),
        "theory.estimation.advice": ("Advice",),
        "theory.estimation._advise": ("advise",),
    }
    _SOLVERS = ("aid", "f2sa", "hoag", "imaml", "itd", "maml", "saba", "soba", "stocbio", "tuning_free")
    _MOVED = (
        "acc_f2ba", "bda", "bome", "d_tfbo", "darts", "darts_first_order", "f2ba", "f2sa_p", "f3sa", "fomaml",
        "forward_itd", "fsla", "g_pbgd", "iaptt", "meha", "mrbo", "pzobo", "qnbo", "reptile", "rtho", "s_tfbo",
        "sama", "srba", "sustain", "v_pbgd", "vrbo",
    )  # fmt: skip
    _HOMES = {name: f"bilevel.{home}" for home, names in _NAMES.items() for name in names}
    _HOMES |= dict.fromkeys(_SOLVERS, "bilevel.solvers")
    _NOW_IN = dict.fromkeys(_MOVED, "bilevel.solvers")
    __getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES, _MODULES, _NOW_IN)


__version__ = "0.2.0"
