"""optimistix: `minimise`, through its checkpointed loop or implicitly, in one `lax.scan` for a run."""

import jax
import lineax
import optax
import optimistix

from contestants.by_hand_jax import runs
from contestants.losses_jax import minus, placed, ridge as penalized, squares, validation, weighted

DEFINITE = frozenset({lineax.positive_semidefinite_tag})


def through(inner, outer, task, solver, adjoint, steps):
    """A step on x along the derivative of f(x, y(x)), y(x) being what the solver makes of the last y."""

    def step(carry, train, valid):
        x, y = carry
        g = lambda y, args: inner(args[0], y, args[1])

        def value(x):
            found = optimistix.minimise(
                g, solver, y, (x, train), max_steps=steps, adjoint=adjoint, throw=False, tags=DEFINITE
            ).value
            return outer(x, found, valid), found

        h, y = jax.grad(value, has_aux=True)(x)
        return minus(x, task.beta, h), y

    return runs(step, task)


def itd(task, tolerance):
    rule = optimistix.OptaxMinimiser(optax.sgd(task.alpha), rtol=0.0, atol=0.0)
    adjoint = optimistix.RecursiveCheckpointAdjoint(checkpoints=1)
    return through(weighted, validation, task, rule, adjoint, 1)


def ridge(task, tolerance):
    placed(task)
    rule = optimistix.LBFGS(rtol=tolerance, atol=tolerance)
    adjoint = optimistix.ImplicitAdjoint(lineax.CG(rtol=tolerance, atol=0.0))
    return through(penalized, squares, task, rule, adjoint, 1000)
