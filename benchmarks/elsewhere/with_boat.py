"""BOAT: operations by name in a configuration; its objectives are found by the name of a function in a module."""

import os

import boat_torch
import torch

from elsewhere.losses_torch import Vector, f, g, x0, y0
from elsewhere.problem import ALPHA, BETA, INNER


def lower(data, x, y, params=None):
    return g(x(), y() if params is None else params[0])


def upper(data, x, y, params=None):
    return f(x(), y() if params is None else params[0])


def solve(steps):
    x, y = Vector(x0), Vector(y0)
    config = {
        "fo_op": None, "gm_op": ["NGD"], "na_op": ["RAD"], "device": "cpu",
        "lower_level_model": y, "lower_level_var": list(y.parameters()),
        "upper_level_model": x, "upper_level_var": list(x.parameters()),
        "lower_level_opt": torch.optim.SGD(y.parameters(), lr=ALPHA),
        "upper_level_opt": torch.optim.SGD(x.parameters(), lr=BETA),
        "lower_iters": INNER, "copy_last_param": True, "return_grad": False,
        "accumulate_grad": False, "loss_log_path": os.devnull,
        "GDA": {"alpha_init": 0.0}, "RGT": {"truncate_iter": 0},
    }  # fmt: skip
    named = lambda at: {"function": f"{__name__}.{at}", "params": {}}
    losses = {f"{at}_level_loss": named(at) for at in ("lower", "upper")}
    run = boat_torch.Problem(config, losses)
    run.build_ll_solver().build_ul_solver()
    for k in range(steps):
        run.run_iter({}, {}, current_iter=k)
    return x()
