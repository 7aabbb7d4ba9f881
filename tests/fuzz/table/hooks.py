"""Hooks, which are checked when they are made."""

import numpy as np

import bilevel as bl
from fuzz.call import Call

hooks = bl.hooks
log = {"path": "/nonexistent/folder/log"}
CALLS = [
    Call("bl.hooks.Best", hooks.Best, {}, {"metric": "text", "mode": "choice"}),
    Call(
        "bl.hooks.EarlyStopping",
        hooks.EarlyStopping,
        {"patience": 3},
        {"metric": "text", "patience": "large count", "mode": "choice", "least": "plain number"},
    ),
    Call("bl.hooks.Tolerance", hooks.Tolerance, {"tol": 0.1}, {"tol": "plain positive"}),
    Call("bl.hooks.Probe", hooks.Probe, {"probe": lambda s, i: {}}, {"probe": "function"}),
    Call(
        "bl.hooks.Evaluate",
        hooks.Evaluate,
        {"function": lambda x, y, batch: {}, "data": np.ones((4, 2), np.float32), "every": 3},
        {
            "function": "function",
            "data": "evaluated",
            "every": "large count",
            "size": "count or none",
            "name": "text or none",
        },
    ),
    Call("bl.hooks.CSV", hooks.CSV, log, {"path": "file", "thin": "large count"}),
    Call("bl.hooks.JSONLines", hooks.JSONLines, log, {"path": "file", "thin": "large count"}),
    Call(
        "bl.hooks.TensorBoard",
        hooks.TensorBoard,
        {"folder": "/nonexistent/folder/log"},
        {"folder": "file", "thin": "large count"},
    ),
    Call(
        "bl.hooks.Stop",
        hooks.Stop,
        {"reason": "enough"},
        {"reason": "text", "code": "choice", "step": "count from zero"},
        also={"step": ("none", "2^31", "2^32")},
    ),
    Call("bl.hooks.Progress", hooks.Progress, {}, {}),
    Call("bl.hooks.Live", hooks.Live, {}, {"tol": "tolerance", "console": "none alone"}),
    Call("bl.hooks.Diagnose", hooks.Diagnose, {}, {}),
]
