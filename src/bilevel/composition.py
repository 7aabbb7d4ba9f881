"""Objective made of a model and a loss, with its Gauss–Newton curvature."""

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import jax
import jax.numpy as jnp
from optax import tree

from bilevel.identity import described
from bilevel.problem import EXTRAS, Objective
from bilevel.types import Metrics, PyTree, Scalar


class Composed:
    """Objective of `bl.composed`. It is picklable if its parts are."""

    def __init__(
        self, model: Callable[..., Any], loss: Callable[..., Any], penalty: Callable[..., Any] | None
    ):
        self.model: Objective = Objective(model, "model of the composed")
        self.loss: Objective = Objective(loss, "loss of the composed")
        of_penalty = None if penalty is None else Objective(penalty, "penalty of the composed")
        self.penalty: Objective | None = of_penalty
        parts = [part for part in (self.model, self.loss, self.penalty) if part is not None]
        for part in parts[1:]:
            if "state" in part.extras:
                raise TypeError(
                    f"the {part.level} objective asks for `state`, which belongs to the model: let the model "
                    "return what the loss needs of it among its predictions"
                )
        self.__signature__: Signature = _signature(parts)  # `Problem` reads it
        self.__qualname__ = f"composed({', '.join(described(part.function) for part in parts)})"

    def __call__(self, x: PyTree, y: PyTree, *data: Any, **extras: Any) -> Any:
        predictions, state = self._predictions(x, y, data, extras)
        loss, metrics = self._loss(x, predictions, data, extras)
        if self.penalty is not None:
            loss = loss + self._penalty(self.penalty, x, y, data, extras)
        if "state" in self.model.extras:
            return loss, metrics, state
        return (loss, metrics) if metrics else loss

    def gauss_newton(self, x: PyTree, y: PyTree, *data: Any, **extras: Any) -> Callable[[PyTree], PyTree]:
        """Return v ↦ Jᵀ(∇²loss)J·v + ∇²penalty·v, with J = ∂model/∂y, from one linearization of each."""
        predictions, J = jax.linearize(lambda y: self._predictions(x, y, data, extras)[0], y)
        for path, leaf in jax.tree_util.tree_leaves_with_path(predictions):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise TypeError(
                    f"the predictions{jax.tree_util.keystr(path)} of the composed model have dtype {leaf.dtype}, but "
                    "Gauss-Newton differentiates the loss in them: return only floating arrays"
                )
        JT = jax.linear_transpose(J, y)
        _, curve = jax.linearize(jax.grad(lambda p: self._loss(x, p, data, extras)[0]), predictions)
        if (penalty := self.penalty) is None:
            return lambda v: JT(curve(J(v)))[0]
        _, penalized = jax.linearize(jax.grad(lambda y: self._penalty(penalty, x, y, data, extras)), y)
        return lambda v: tree.add(JT(curve(J(v)))[0], penalized(v))

    def _predictions(
        self, x: PyTree, y: PyTree, data: tuple[Any, ...], extras: dict[str, Any]
    ) -> tuple[PyTree, PyTree]:
        out = _ask(self.model, x, y, data, extras)
        if "state" not in self.model.extras:
            return out, None
        if not (isinstance(out, tuple) and len(out) == 2):
            raise TypeError(
                "a model that takes `state` must return (predictions, state), but returned "
                f"{type(out).__name__}: return both"
            )
        return out

    def _loss(
        self, x: PyTree, predictions: PyTree, data: tuple[Any, ...], extras: dict[str, Any]
    ) -> tuple[Scalar, Metrics]:
        out = _ask(self.loss, x, predictions, data, extras)
        if not isinstance(out, tuple):
            return out, {}
        if len(out) != 2 or not isinstance(out[1], dict):
            raise TypeError(
                "the loss of a composed objective must return a scalar, or (loss, metrics) with a dict of scalars by "
                f"name, but returned ({', '.join(type(part).__name__ for part in out)})"
            )
        return out

    def _penalty(
        self, penalty: Objective, x: PyTree, y: PyTree, data: tuple[Any, ...], extras: dict[str, Any]
    ) -> Any:
        out = _ask(penalty, x, y, data, extras)
        if not (isinstance(out, int | float) or hasattr(out, "shape")):
            raise TypeError(
                f"the penalty of a composed objective must return a scalar, but returned {type(out).__name__}: metrics "
                "go with the loss"
            )
        return out


def composed(
    model: Callable[..., PyTree],
    loss: Callable[..., Any],
    penalty: Callable[..., Scalar] | None = None,
) -> Composed:
    """Return the inner objective g(x, y) = loss(x, model(x, y, batch), batch) + penalty(x, y).

    It is an ordinary objective. In addition, `bl.adjoints.gauss_newton` can leave out the model's curvature:

        ∇²_yy g = Jᵀ(∇²loss)J + Σ_i (∂loss/∂p_i) ∇²_yy p_i + ∇²_yy penalty,        p = model(x, y), J = ∂p/∂y

    The first term is positive semidefinite if the loss is convex in the predictions. Squared errors and
    cross-entropies of logits with non-negative weights are. Only the second term can be indefinite for a
    network. It is small if the model fits the data.

    Each part takes `(x, y)` or `(x, y, batch)`, and may ask for the keywords `key` and `rows`. A model that
    asks for `state` returns `(predictions, state)`. A loss may return `(loss, metrics)`.

    Args:
        model: maps x, y and a batch to the predictions, any pytree of floating arrays.
        loss: maps x, the predictions and a batch to a scalar.
        penalty: maps x and y to a scalar, such as a ridge; its Hessian stays unchanged.
    """
    return Composed(model, loss, penalty)


def _ask(part: Objective, x: PyTree, at: PyTree, data: tuple[Any, ...], extras: dict[str, Any]) -> Any:
    """Return the value of a part, called with the arguments that it takes."""
    given = {name: extras[name] for name in part.extras if name in extras}
    return part.function(x, at, *(() if part.batch == "never" else data), **given)


def _signature(parts: list[Objective]) -> Signature:
    """Return (x, y) with a batch and the keywords that any part asks for."""
    empty, taken = Parameter.empty, {part.batch for part in parts}
    parameters = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("x", "y")]
    if taken != {"never"}:
        default = empty if "required" in taken else None
        parameters.append(Parameter("batch", Parameter.POSITIONAL_OR_KEYWORD, default=default))
    for name in EXTRAS:
        if any(name in part.extras for part in parts):
            default = empty if any(name in part.needs for part in parts) else None
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default))
    return Signature(parameters)
