"""Equations of a traced program that its wanted outputs depend on, through loops, branches and calls."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal

Flags = tuple[bool, ...]
CALLS = (
    "jit", "closed_call", "core_call", "call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call",
)  # fmt: skip


class Liveness:
    """Cached answers by program and wanted outputs: nested loops ask the same question many times."""

    def __init__(self):
        self._answers: dict[Any, tuple[list[Flags | None], Flags]] = {}

    def of(self, program: Any, wanted: Flags) -> tuple[list[Flags | None], Flags]:
        """Return which outputs of every equation are alive (`None` for a dead one), and which inputs are needed."""
        if (program, wanted) not in self._answers:
            self._answers[program, wanted] = self._of(opened(program)[0], wanted)
        return self._answers[program, wanted]

    def _of(self, jaxpr: Jaxpr, wanted: Flags) -> tuple[list[Flags | None], Flags]:
        outputs = zip(jaxpr.outvars, wanted, strict=True)
        living = {v for v, wants in outputs if wants and not isinstance(v, Literal)}
        alive: list[Flags | None] = []
        for eqn in reversed(jaxpr.eqns):
            outs = tuple(v in living for v in eqn.outvars)
            if any(outs) or eqn.effects:
                needed = zip(eqn.invars, self.needed(eqn, outs), strict=True)
                living |= {v for v, needs in needed if needs and not isinstance(v, Literal)}
                alive.append(outs)
            else:
                alive.append(None)
        return alive[::-1], tuple(v in living for v in jaxpr.invars)

    def needed(self, eqn: JaxprEqn, outs: Flags) -> Flags:
        """Return which inputs an equation needs for these outputs; for a loop, all variables alive in any turn."""
        match eqn.primitive.name:
            case "scan":
                carries = len(split(eqn, eqn.invars)[1])
                carry, ys = outs[:carries], outs[carries:]
                while True:
                    constants, fed, xs = split(eqn, self.of(callee(eqn), carry + ys)[1])
                    if (grown := _either(carry, fed)) == carry:
                        return (*constants, *carry, *xs)
                    carry = grown
            case "while":
                condition, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
                for_condition = self.of(condition, (True,))[1]
                carry = _either(outs, for_condition[-len(outs) :])
                while True:
                    for_body = self.of(body, carry)[1]
                    if (grown := _either(carry, for_body[-len(outs) :])) == carry:
                        return (*for_condition[: -len(outs)], *for_body[: -len(outs)], *carry)
                    carry = grown
            case "cond":
                return (True, *_either(*(self.of(branch, outs)[1] for branch in eqn.params["branches"])))
            case call if call in CALLS:
                return self.of(callee(eqn), outs)[1]
            case _:
                return (True,) * len(eqn.invars)


def opened(program: Any) -> tuple[Jaxpr, Sequence[Any]]:
    """Return a program without its constants, and the constants; versions of jax differ in their types."""
    return getattr(program, "jaxpr", program), getattr(program, "consts", ())


def callee(eqn: JaxprEqn) -> Any:
    """Return the program that a call or a scan runs."""
    return eqn.params["jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"]


def split(eqn: JaxprEqn, inputs: Any) -> tuple[Any, Any, Any]:
    """Split a scan's inputs into (constants, carry, xs), and a while loop's into (condition's, body's, carry).

    Shapes and lengths decide, since the names of the parameters differ between versions of jax.
    """
    if eqn.primitive.name == "while":
        carries = len(eqn.outvars)
        first = len(opened(eqn.params["cond_jaxpr"])[0].invars) - carries
        second = first + len(opened(eqn.params["body_jaxpr"])[0].invars) - carries
        return inputs[:first], inputs[first:second], inputs[second:]
    body = opened(callee(eqn))[0]
    longer = lambda outside, inside: outside.aval.ndim > inside.aval.ndim
    stacked = lambda *variables: sum(map(longer, *variables))
    xs = len(eqn.invars) - stacked(eqn.invars, body.invars)
    carries = len(eqn.outvars) - stacked(eqn.outvars, body.outvars)
    return inputs[: xs - carries], inputs[xs - carries : xs], inputs[xs:]


def _either(*flags: Flags) -> Flags:
    return tuple(map(any, zip(*flags, strict=True)))
