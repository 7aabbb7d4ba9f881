"""BOAT: gradient steps (NGD) with reverse differentiation (RAD) or a Neumann series from zero (NS)."""

import os

import boat_torch
import torch
from torch.nn import functional

from contestants.losses_torch import Network, Weights, fetched, placed, scores


def lower(rows, weights, network, params=None):
    """BOAT finds its objectives by the name of a function in a module."""
    y = tuple(network.parameters() if params is None else params)
    losses = functional.cross_entropy(scores(y, rows["inputs"]), rows["labels"], reduction="none")
    return (weights() * losses).mean()


def upper(rows, weights, network, params=None):
    y = tuple(network.parameters() if params is None else params)
    return functional.cross_entropy(scores(y, rows["inputs"]), rows["labels"])


def runs(task, gradients):
    _, _, train, valid = placed(task)
    rows = lambda batch: dict(zip(("inputs", "labels"), batch, strict=True))

    def run():
        x, y, _, _ = placed(task)
        weights, network = Weights(x), Network(y)
        config = {
            "fo_op": None,
            "gm_op": ["NGD"],
            "na_op": [gradients],
            "lower_level_model": network,
            "upper_level_model": weights,
            "lower_level_var": list(network.parameters()),
            "upper_level_var": list(weights.parameters()),
            "lower_level_opt": torch.optim.SGD(network.parameters(), lr=task.alpha),
            "upper_level_opt": torch.optim.SGD(weights.parameters(), lr=task.beta),
            "lower_iters": 1,
            "device": "cpu",
            "loss_log_path": os.devnull,
            "accumulate_grad": False,
            "return_grad": False,
            "copy_last_param": True,
            "fo_ol_batch_input": False,
            "GDA": {"alpha_init": 0.0, "alpha_decay": 1.0},
            "RGT": {"truncate_iter": 0},
            "CG": {"tolerance": 0.0, "k": 1},
        }
        objective = lambda name: {"function": f"{__name__}.{name}", "params": {}}
        problem = boat_torch.Problem(
            config, {"lower_level_loss": objective("lower"), "upper_level_loss": objective("upper")}
        )
        problem.build_ll_solver().build_ul_solver()
        for k in range(task.steps):
            problem.run_iter(rows(train), rows(valid), current_iter=k)
        return fetched(weights.x, network.parameters())

    return run


def itd(task, tolerance):
    return runs(task, "RAD")


def aid_neumann(task, tolerance):
    return runs(task, "NS")
