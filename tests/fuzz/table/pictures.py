"""Pictures, of small results."""

from functools import cache

import numpy as np

import bilevel as bl
from fuzz.call import Call, Later
from fuzz.valid import CONSTANTS, SOLVER, X0, Y0, result


@cache
def found() -> bl.Sweep:
    return bl.sweep(SOLVER, X0, Y0, steps=2, seeds=[0, 1, 2])


PAIRS = ("floats", "doubles", "big-endian", "long doubles", "whole numbers", "truths")
CALLS = [
    Call(
        "bl.plot.trace",
        bl.plot.trace,
        {"result": Later(result)},
        {"result": "result", "names": "none alone", "label": "text or none", "ax": "none alone"},
    ),
    Call(
        "bl.plot.hyperparameters",
        bl.plot.hyperparameters,
        {"values": np.ones((4, 3))},
        {
            "values": "refused",
            "name": "text",
            "transform": "function or none",
            "labels": "none alone",
            "ax": "none alone",
        },
        also={"values": (*PAIRS, "nan array", "matrix", "examples", "batch"), "labels": ("range",)},
    ),
    Call(
        "bl.plot.weights",
        bl.plot.weights,
        {"values": np.arange(3.0)},
        {"values": "refused", "groups": "none alone", "transform": "function or none", "ax": "none alone"},
        also={"values": (*PAIRS, "matrix", "result"), "groups": ("range",)},
    ),
    Call(
        "bl.plot.sweep",
        bl.plot.sweep,
        {"found": Later(found)},
        {"found": "refused", "name": "none alone", "labels": "none alone", "ax": "none alone"},
        also={"labels": ("range",)},
    ),
    Call(
        "bl.plot.certificate",
        bl.plot.certificate,
        {"certificates": bl.theory.aid(CONSTANTS), "steps": 10, "gap": 1.0},
        {
            "certificates": "refused",
            "steps": "count",
            "gap": "real",
            "y_error": "real",
            "v_error": "real",
            "beta": "real",
            "measured": "none alone",
            "ax": "none alone",
        },
        also={
            "certificates": ("certificate",),
            "steps": ("2^31",),
            "v_error": ("none",),
            "beta": ("none",),
            "measured": PAIRS,
        },
    ),
]
