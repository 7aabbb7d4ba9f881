"""What solvers are made of: adjoints, projections, proximal maps, problems and batches."""

import jax.numpy as jnp
import numpy as np

import bilevel as bl
from fuzz.call import Call
from fuzz.valid import DATA, inner, outer

solving = {"tol": "positive", "max_steps": "count or none", "preconditioner": "preconditioner"}
strengths = {"strength": "strength"}
groups = np.array([0, 0, 1])
fits = lambda x, y, batch=None: y
squares = lambda x, p, batch=None: jnp.sum(p * p)

CALLS = [
    Call("bl.adjoints.cg", bl.adjoints.cg, {}, solving),
    Call("bl.adjoints.minres", bl.adjoints.minres, {}, solving),
    Call(
        "bl.adjoints.neumann",
        bl.adjoints.neumann,
        {"eta": 0.1, "products": 2},
        {"eta": "positive", "products": "count"},
    ),
    Call(
        "bl.adjoints.steps", bl.adjoints.steps, {"rule": 0.1, "count": 2}, {"rule": "rule", "count": "count"}
    ),
    Call("bl.adjoints.one_step", bl.adjoints.one_step, {"rule": 0.1}, {"rule": "rule"}),
    Call("bl.adjoints.quasi_newton", bl.adjoints.quasi_newton, {}, {"steps": "count", "memory": "count"}),
    Call(
        "bl.adjoints.damped",
        bl.adjoints.damped,
        {"adjoint": 0.1, "damping": 0.1},
        {"adjoint": "adjoint", "damping": "number"},
    ),
    Call("bl.adjoints.gauss_newton", bl.adjoints.gauss_newton, {"adjoint": 0.1}, {"adjoint": "adjoint"}),
    Call(
        "bl.adjoints.nystrom",
        bl.adjoints.nystrom,
        {"rank": 2, "damping": 0.1},
        {"rank": "count", "damping": "positive", "sketch": "choice", "seed": "seed"},
    ),
    Call(
        "bl.projected",
        bl.projected,
        {"rule": 0.1, "project": lambda x: x},
        {"rule": "rule", "project": "function"},
    ),
    Call("bl.fixed_preconditioner", bl.fixed_preconditioner, {"rule": 0.1}, {"rule": "rule"}),
    Call("bl.prox.l1", bl.prox.l1, {"strength": 0.1}, strengths),
    Call(
        "bl.prox.elastic_net",
        bl.prox.elastic_net,
        {"l1": 0.1, "l2": 0.1},
        {"l1": "strength", "l2": "strength"},
    ),
    Call(
        "bl.prox.group_lasso",
        bl.prox.group_lasso,
        {"strength": 0.1, "groups": groups},
        strengths | {"groups": "groups"},
    ),
    Call(
        "bl.prox.sparse_group_lasso",
        bl.prox.sparse_group_lasso,
        {"l1": 0.1, "strength": 0.1, "groups": groups},
        strengths | {"l1": "strength", "groups": "groups"},
    ),
    Call(
        "bl.prox.box",
        bl.prox.box,
        {"low": -1.0, "high": 1e309},
        {"low": "bound", "high": "bound"},
        also={"low": ("minus one", "minus inf", "inf"), "high": ("minus one", "inf")},
    ),
    Call(
        "bl.Problem",
        bl.Problem,
        {"inner": inner, "outer": outer},
        {"inner": "objective", "outer": "objective", "prox": "function or none"},
    ),
    Call(
        "bl.composed",
        bl.composed,
        {"model": fits, "loss": squares},
        {"model": "objective", "loss": "objective", "penalty": "objective"},
        also={"penalty": ("none",)},
    ),
    # What a batch holds is seen by the objectives only, and checked where it is used.
    Call("bl.Batch", bl.Batch, {}, {"inner": "anything", "outer": "anything", "shared": "anything"}),
    Call("bl.Levels", bl.Levels, {}, {"inner": "anything", "outer": "anything"}),
]
for sampler in (bl.epochs, bl.iid, bl.blocks):
    CALLS.append(
        Call(
            f"bl.{sampler.__name__}",
            sampler,
            {"data": DATA, "size": 2},
            {"data": "batch", "size": "count", "seed": "traced seed"},
            also={"size": ("none",)},
        )
    )
CALLS.append(
    Call(
        "bl.loaders",
        bl.loaders,
        {"inner": [np.ones(2)]},
        {"inner": "loader", "outer": "loader"},
        also={"outer": ("none",)},
    )
)
