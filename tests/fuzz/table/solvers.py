"""Every solver: what its arguments are follows from their names."""

import inspect

import bilevel as bl
from fuzz.call import Call
from fuzz.valid import PROBLEM

KINDS = {
    "problem": "problem",
    "inner": "rule",
    "outer": "rule",
    "adjoint": "adjoint",
    "auxiliary": "rule or none",
    "start": "rule or none",
    "penalty": "schedule",
    "momentum": "share",
    "radius": "positive",
    "mixing": "share",
    "outer_share": "positive",
    "fading": "schedule",
    "virtual_step": "positive",
    "displacement": "positive",
    "rate": "positive",
    "lookahead": "share",
    "accumulators": "positive",
    "proximal_weight": "positive",
    "proximal_step": "positive",
    "damping": "number",
    "tol": "positive",
    "barrier": "choice",
    "batches": "choice",
    "order": "count",
    "seed": "seed",
    "project": "function or none",
    "truncate": "count or none",
}
VALID = {"problem": PROBLEM, "inner_steps": 2}


def is_solver(value: object) -> bool:
    made = inspect.isfunction(value) and inspect.signature(value).return_annotation
    return isinstance(made, type) and issubclass(made, bl.Solver)


def call(name: str) -> Call:
    function = getattr(bl.solvers, name)
    kinds, valid = {}, {}
    for parameter in inspect.signature(function).parameters.values():
        counts = parameter.annotation is int and parameter.name != "seed"
        left_out = parameter.name == "batches" and parameter.default is None
        kinds[parameter.name] = "count" if counts else "none alone" if left_out else KINDS[parameter.name]
        if parameter.name == "adjoint" and not isinstance(parameter.annotation, type):
            text = str(parameter.annotation)
            kinds["adjoint"] = "adjoint" if "Adjoint" in text else "rule" if "optax" in text else "step size"
            if "None" in text:
                kinds["adjoint"] = "adjoint alone"
        if parameter.name == "tol" and "Callable" in str(parameter.annotation):
            kinds["tol"] = "function"
        if parameter.name == "momentum" and "Callable" in str(parameter.annotation):
            kinds["momentum"] = "share or schedule"
        if parameter.default is parameter.empty:
            valid[parameter.name] = VALID.get(parameter.name, 0.1)
    room = "bl" if name in bl.__all__ else "bl.solvers"
    return Call(f"{room}.{name}", function, valid, kinds)


CALLS = [call(name) for name in bl.solvers.__all__ if is_solver(getattr(bl.solvers, name))]
