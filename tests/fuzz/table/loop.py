"""What runs: `run`, `scan`, `sweep` and their like, on a problem in two variables."""

import atexit
import shutil
import tempfile
from functools import cache

import jax

import bilevel as bl
from fuzz.call import Call, Later
from fuzz.valid import PROBLEM, SOLVER, X0, Y0, result, run_state

LONG = ("2^31", "2^32", "2^63")  # steps that somebody may want
MESH = jax.sharding.Mesh(jax.devices()[:1], ("data",))
run = {"solver": SOLVER, "x0": X0, "y0": Y0, "steps": 1}
running = {
    "solver": "solver",
    "x0": "start",
    "y0": "start",
    "steps": "count",
    "data": "loader data",
    "seed": "seed",
    "model_state": "none alone",
    "warmup": "count from zero",
    "hooks": "hooks",
    "every": "count or none",
    "record": "record",
    "progress": "truth",
}


@cache
def saved() -> str:
    """The folder of a run that saved itself."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    bl.run(SOLVER, X0, Y0, steps=1, checkpoint=folder)
    return folder


RARE = {
    "every": "count or none",
    "save_every": "count or none",
    "thin": "count or none",
    "on_divergence": "choice",
}
NAMES = ("text", "text of a number", "path")  # of folders that would be made

CALLS = [
    Call(
        "bl.run",
        bl.run,
        run,
        {name: kind for name, kind in running.items() if name != "every"}
        | {"tol": "tolerance", "resume": "none alone", "checkpoint": "none alone", "options": "refused"},
        skip={"steps": LONG, "warmup": LONG, "checkpoint": NAMES},
    ),
    Call(
        "bl.RunOptions",
        bl.RunOptions,
        {},
        RARE
        | {"diagnose": "truth", "probe": "probe", "snapshots": "choice"}
        | {"prefetch": "count from zero or none", "offload": "none alone", "mesh": "none alone"},
    ),
    Call(
        "bl.sharded",
        bl.sharded,
        {"mesh": MESH},
        {
            "mesh": "refused",
            "data": "first or none",
            "x": "none alone",
            "y": "none alone",
            "model_state": "none alone",
        },
    ),
    Call(
        "bl.sweep",
        bl.sweep,
        {"solvers": SOLVER} | {k: v for k, v in run.items() if k != "solver"},
        {k: v for k, v in running.items() if k not in ("solver", "seed")}
        | {
            "solvers": "solver",
            "seeds": "seeds",
            "starts": "none alone",
            "combine": "choice",
            "metric": "metric",
            "mode": "choice",
        },
        skip={"steps": LONG, "warmup": LONG},
        costly=True,
    ),
    Call(
        "bl.start",
        bl.start,
        {"solver": SOLVER, "x0": X0, "y0": Y0},
        {
            "solver": "solver",
            "x0": "tree",
            "y0": "tree",
            "data": "data",
            "seed": "traced seed",
            "model_state": "none alone",
        },
    ),
    Call(
        "bl.scan",
        bl.scan,
        {"solver": SOLVER, "state": Later(run_state), "steps": 1},
        {
            "solver": "solver",
            "state": "state",
            "data": "data",
            "steps": "count",
            "start": "count from zero",
            "record": "function",
        },
        costly=True,
        also={"start": (*LONG, "2^64", "10^30")},
    ),
    Call(
        "bl.hypergradient",
        bl.hypergradient,
        {"problem": PROBLEM, "x": X0, "y": Y0},
        {"problem": "problem", "x": "tree", "y": "tree", "data": "data", "adjoint": "adjoint or none"},
    ),
    Call(
        "bl.warm_up",
        bl.warm_up,
        {"solver": SOLVER, "state": Later(run_state), "steps": 1},
        {"solver": "solver", "state": "state", "data": "data", "steps": "count from zero"},
    ),
    Call(
        "bl.oracle_calls",
        bl.oracle_calls,
        {"solver": SOLVER, "state": Later(run_state)},
        {"solver": "solver", "state": "state", "data": "data", "steps": "count"},
        also={"steps": LONG},
    ),
    Call(
        "bl.run",
        bl.run,
        {"solver": SOLVER, "resume": Later(result), "steps": 1},
        {"solver": "solver", "resume": "result", "data": "none alone", "record": "record", "probe": "probe"},
    ),
    Call("bl.load", bl.load, {"folder": Later(saved)}, {"folder": "refused"}),
    Call(
        "bl.hooks.Checkpoint",
        bl.hooks.Checkpoint,
        {"folder": "/nonexistent/folder"},
        {"folder": "file", "save_every": "rhythm", "keep": "count"},
    ),
]
