"""Evaluation of a traced program with a counter, without dead code.

A dead value is `None`, which has no leaves as a pytree: it takes no memory in a loop and cannot be used by mistake.
Loops and branches are rebuilt with the counter among their variables; calls are inlined.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal, jaxprs_in_params

from bilevel.counting.marked import KINDS, LEAF, Counts
from bilevel.liveness import CALLS, Flags, Liveness, callee, opened, split

Values = Sequence[Any]  # None where dead


def counting(function: Callable[..., Any]) -> Callable[..., tuple[Any, Counts]]:
    """Return a function of the same arguments that returns `(output, counts)`, with counts as integer arrays.

    It counts the calls that the whole output of `function` needs. `function` must use a `bl.counting.counted`
    problem. Use the result inside `jit` and `scan`; do not differentiate it.
    """

    def counted_function(*args: Any) -> tuple[Any, Counts]:
        program, shapes = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
        nothing = Counts(*(jnp.zeros((), int) for _ in Counts._fields))
        wanted = (True,) * len(jax.tree.leaves(shapes))
        total, outputs = _Interpreter().evaluate(program, wanted, nothing, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs), total

    return counted_function


class _Interpreter:
    def __init__(self):
        self.liveness = Liveness()
        self.rules = dict.fromkeys(CALLS, self._call) | {
            "scan": self._scan,
            "while": self._while,
            "cond": self._cond,
        }

    def evaluate(self, program: Any, wanted: Flags, total: Counts, args: Values) -> tuple[Counts, Values]:
        """Return the total after the program, and its wanted outputs."""
        jaxpr, constants = opened(program)
        values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *args], strict=True))
        read = lambda v: _constant(v) if isinstance(v, Literal) else values[v]
        alive, _ = self.liveness.of(program, wanted)
        for eqn, outs in zip(jaxpr.eqns, alive, strict=True):
            if outs is None:
                continue
            needed = self.liveness.needed(eqn, outs)
            inputs = [read(v) if needs else None for v, needs in zip(eqn.invars, needed, strict=True)]
            rule = self.rules.get(eqn.primitive.name, self._other)
            with eqn.ctx.manager:
                total, outputs = rule(eqn, outs, needed, total, inputs)
            values.update(zip(eqn.outvars, outputs, strict=True))
        return total, [read(v) if wants else None for v, wants in zip(jaxpr.outvars, wanted, strict=True)]

    def _call(self, eqn: JaxprEqn, outs: Flags, needed: Flags, total: Counts, inputs: Values):
        if (one := KINDS.get(eqn.params.get("name", ""))) is not None:
            total = total + Counts(*(_width(eqn) * each for each in one))
        return self.evaluate(callee(eqn), outs, total, inputs)

    def _scan(self, eqn: JaxprEqn, outs: Flags, needed: Flags, total: Counts, inputs: Values):
        body, (constants, carry, xs) = callee(eqn), split(eqn, inputs)
        wanted = (*split(eqn, needed)[1], *outs[len(carry) :])

        def turn(counter_and_carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            total, *carry = counter_and_carry
            total, out = self.evaluate(body, wanted, total, [*constants, *carry, *x])
            return [total, *out[: len(carry)]], list(out[len(carry) :])

        options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
        (total, *carry), ys = lax.scan(turn, [total, *carry], list(xs), **options)
        return total, [*carry, *ys]

    def _while(self, eqn: JaxprEqn, outs: Flags, needed: Flags, total: Counts, inputs: Values):
        condition, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
        for_condition, for_body, carry = split(eqn, inputs)
        _, _, wanted = split(eqn, needed)

        def check(total: Counts, carry: Values) -> list[Any]:  # its calls count too, also in the last turn
            total, (going_on,) = self.evaluate(condition, (True,), total, [*for_condition, *carry])
            return [total, going_on, *carry]

        def turn(state: list[Any]) -> list[Any]:
            total, going_on, *carry = state
            total, moved = self.evaluate(body, wanted, total, [*for_body, *carry])
            return check(total, [_where(going_on, *each) for each in zip(moved, carry, strict=True)])

        total, _, *carry = lax.while_loop(lambda state: jnp.any(state[1]), turn, check(total, carry))
        return total, carry

    def _cond(self, eqn: JaxprEqn, outs: Flags, needed: Flags, total: Counts, inputs: Values):
        branches = [partial(self.evaluate, branch, outs) for branch in eqn.params["branches"]]
        index, *operands = inputs
        return lax.switch(index, branches, total, operands)

    def _other(self, eqn: JaxprEqn, outs: Flags, needed: Flags, total: Counts, inputs: Values):
        if _hides_functions(eqn):
            program = jax.make_jaxpr(partial(eqn.primitive.impl, **eqn.params))(*inputs)
            return self.evaluate(program, outs, total, inputs)
        if any(map(_has_marks, jaxprs_in_params(eqn.params))):
            raise NotImplementedError(
                f"derivatives inside the primitive {eqn.primitive.name!r} cannot be counted"
            )
        out = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
        return total, out if eqn.primitive.multiple_results else [out]


def _width(eqn: JaxprEqn) -> int:
    """Return the number of evaluations of a mark under `vmap`: the growth of its widest leaf."""
    leaves: list[Any] = [
        leaf for leaf in opened(callee(eqn))[0].eqns if leaf.params.get("name", "").startswith(LEAF)
    ]
    sizes = [(leaf.outvars[0].aval.size, int(leaf.params["name"].removeprefix(LEAF))) for leaf in leaves]
    return max((now // alone for now, alone in sizes if alone), default=1)


def _constant(literal: Any) -> np.ndarray:
    """Return the literal with its dtype, which a Python number would lose as a loop's first value."""
    return np.asarray(literal.val, literal.aval.dtype)


def _where(going_on: Any, moved: Any, before: Any) -> Any:
    """Return the moved value, but under `vmap` the previous one for loops that have finished."""
    if moved is None or not jnp.ndim(going_on):
        return moved
    return lax.select(lax.broadcast_in_dim(going_on, moved.shape, range(going_on.ndim)), moved, before)


def _hides_functions(eqn: JaxprEqn) -> bool:
    """Return whether this is a primitive of equinox, such as a linear solve, whose functions appear when it runs."""
    return getattr(eqn.primitive.impl, "__module__", "").startswith("equinox")


def _has_marks(program: Any) -> bool:
    equations = opened(program)[0].eqns
    return any(
        eqn.params.get("name") in KINDS
        or _hides_functions(eqn)
        or any(map(_has_marks, jaxprs_in_params(eqn.params)))
        for eqn in equations
    )
