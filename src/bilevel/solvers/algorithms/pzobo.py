"""PZOBO: random moves of x and repeated inner loops measure how y depends on x."""

from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int
from optax import tree

from bilevel.batch import first
from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, check_batches, count, factory, field, positive
from bilevel.solvers.parts.inner import inner_loop
from bilevel.solvers.parts.lagrangian import tilted
from bilevel.solvers.parts.trees import scaled
from bilevel.types import Number, PyTree, StepSize

DIRECTIONS = 2  # folded into the step's key; 0 and 1 belong to the objectives


class PZOBOState(NamedTuple):
    x: PyTree  # x_{k+1}
    y: PyTree  # ŷ_k, the next warm start
    inner: PyTree  # memory of the inner rule
    outer: PyTree  # memory of the outer rule
    k: Int[Array, ""]


class PZOBO(ExplicitSolver):
    displacement: Number = field(converter=positive("displacement"))
    directions: int = field(static=True, converter=count("directions"))
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "PZOBO"
    traits: ClassVar[Traits] = Traits(first_order=True, outer_last_only=True)

    @property
    def wants(self) -> frozenset[str]:
        return self.problem.wants | {"key"}

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> PZOBOState:
        x, y = self.prepare(x0, y0, batch)
        return PZOBOState(x, y, self.inner.init(y), self.outer.init(x), jnp.int32(0))

    def step(self, state: PZOBOState, batch: Batch | Draws | None = None) -> tuple[PZOBOState, Info]:
        x, problem = state.x, self.problem
        run = lambda x: inner_loop(problem, self.inner, self.inner_steps, x, state.y, state.inner, batch)
        y, inner_memory, inner_gradient, last, model = run(x)
        f = problem.oracles.outer_gradients(x, y, last)

        def along(u: PyTree) -> PyTree:
            there = run(tree.add(x, scaled(self.displacement, u))).y
            slope = tree.vdot(tree.sub(there, y), f.y) / jnp.asarray(self.displacement, f.value.dtype)
            return scaled(slope, u)

        parts = jax.vmap(along)(gaussian(self.key(state, first(batch)), x, self.directions))
        hypergradient = tree.add(f.x, jax.tree.map(lambda part: jnp.mean(part, 0), parts))
        value = tilted(lambda x: problem.f(x, y, last), x, f.x, hypergradient)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)
        state = PZOBOState(x, y, inner_memory, outer_memory, state.k + 1)
        return state, Info(f.value, hypergradient, inner_gradient, {}, model)

    def key(self, state: PZOBOState, batch: Batch | None) -> Array:
        """Return the loop's key of this step, or without a loop a key of the step's number."""
        if batch is None or batch.key is None:
            return jax.random.fold_in(jax.random.key(DIRECTIONS), state.k)
        return jax.random.fold_in(batch.key, DIRECTIONS)


@factory(mu="displacement")
def pzobo(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    displacement: Number = 0.1,
    directions: int = 1,
    inner_steps: int = 10,
    batches: str = "independent",
) -> PZOBO:
    """Estimate the derivative of the inner loop's end y_N(x) by differences along Q random directions:

        ŷ_k     = y_N(x_k)                                         N steps y ← y − α ∇_y g(x_k, y) from ŷ_{k−1}
        δ_i     = (y_N(x_k + μ u_i) − ŷ_k)/μ                       u_i standard normal, i = 1, …, Q
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) + (1/Q) Σ_i u_i ⟨δ_i, ∇_y f(x_k, ŷ_k)⟩)

    It takes ∇f and the ∇_y g of Q + 1 inner loops, and no other derivatives. The estimate's mean is the hypergradient
    of `bl.itd` with as many steps, bias included, up to O(μ²) for a smooth y_N. Its variance is (n + 1)‖h‖²/Q over all
    n entries of x together, where h is ITD's implicit term. It does not vanish at a stationary point unless ∇_y f does:
    with few directions and a large x, take small steps. So it suits a small x, or an inner rule without a derivative,
    such as one with a line search.

    D. Sow, K. Ji, Y. Liang, "On the convergence theory for Hessian-free bilevel algorithms", NeurIPS 2022. It agrees
    step for step with benchmark_bilevel's implementation, given the same directions. A run draws them from `seed`.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        displacement: μ, how far x is moved, in units of x: small against the scale on which y*(x) bends, large against
            rounding.
        directions: Q, the number of further inner loops.
        inner_steps: N, the number of steps on y per step on x.
        batches: "independent", a draw for every inner step, the same ones in all Q + 1 loops; or "shared", one for all.
    """
    return PZOBO(problem, inner, outer, displacement, directions, inner_steps, batches)


def gaussian(key: Array, x: PyTree, count: int) -> PyTree:
    """Return `count` standard normal trees of x's shapes, stacked."""
    leaves, structure = jax.tree.flatten(x)
    keys = jax.random.split(key, len(leaves))
    draw = lambda key, leaf: jax.random.normal(key, (count, *leaf.shape), leaf.dtype)
    return structure.unflatten([draw(*each) for each in zip(keys, leaves, strict=True)])
