"""The shape every solver has: a pure `init` and a pure `step`, and what they return."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float

from bilevel.problem import Batch, Problem

PyTree = Any


@runtime_checkable
class State(Protocol):
    """What the next step needs. Each solver has a named tuple of its own; all of them have x and y."""

    @property
    def x(self) -> PyTree: ...
    @property
    def y(self) -> PyTree: ...


class Info(NamedTuple):
    """What a reader wants to know of one step: quantities at x_k, the point the step started from."""

    outer_value: Float[Array, ""]  # f(x_k, ŷ_k)
    hypergradient: PyTree  # the estimate of ∇Φ(x_k) that moved x
    inner_gradient: PyTree  # ∇_y g(x_k, y_k⁰), where the inner level stood
    metrics: dict[str, Float[Array, ""]]  # further scalars of the method, by name; traced by default


@dataclass(frozen=True, eq=False)
class Solver:
    """A bilevel algorithm: `init(x0, y0, batch) -> state` and `step(state, batch) -> (state, info)`.

    Both are pure, so jit, vmap, scan and sharding apply to them as to any JAX function. `warm_up` is one
    step on the inner variables alone, x held fixed; `run(..., warmup=N)` takes N of them first.
    `variables` names the state's iterates: those that must stay finite. `step_sizes` holds the paper's α, η
    and β where the solver is one of its two algorithms, which is what `theory.verify` reads.
    """

    name: str
    problem: Problem
    variables: tuple[str, ...]
    init: Callable[..., Any] = field(repr=False)
    step: Callable[..., tuple[Any, Info]] = field(repr=False)
    warm_up: Callable[[Any, Batch | None], Any] = field(repr=False)
    step_sizes: dict[str, Any] = field(default_factory=dict, repr=False)
