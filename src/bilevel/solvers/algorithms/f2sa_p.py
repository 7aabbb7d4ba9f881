"""F2SA-p: first derivatives only, with a bias of any order in the penalty."""

import math
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int
from optax import tree

from bilevel.batch import first, with_state
from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, Info, Problem, Traits, descend, draws
from bilevel.solvers.messages import Finding
from bilevel.solvers.options import Rule, check_batches, count, factory, field
from bilevel.solvers.parts.inner import Carried, carried, carried_state, next_state, seen_by
from bilevel.solvers.parts.penalty import Penalty, as_penalty, curvatures, not_convex
from bilevel.solvers.parts.trees import scaled, select
from bilevel.types import Number, PyTree, Scalar, Schedule, StepSize


class F2SApState(NamedTuple):
    x: PyTree
    y: PyTree  # y_1, which tracks the minimizer of g + f/λ
    z: PyTree  # the other copies, stacked
    inner: PyTree  # memories of the inner rule, stacked, the one for y first
    outer: PyTree  # memory of the outer rule
    k: Int[Array, ""]


class F2SAp(ExplicitSolver):
    penalty: Penalty = field(converter=as_penalty)
    order: int = field(static=True, converter=count("order"))
    inner_steps: int = field(static=True, converter=count("inner_steps"))
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "F2SA-p"
    traits: ClassVar[Traits] = Traits(first_order=True, penalized=True, inner_rule="minimum")
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "z")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | Draws | None = None) -> F2SApState:
        x, y = self.prepare(x0, y0, batch)
        copies = jax.tree.map(lambda a: jnp.stack([a] * len(difference(self.order)[0])), y)
        memories = jax.vmap(self.inner.init)(copies), self.outer.init(x)
        return F2SApState(x, *apart(copies), *memories, jnp.int32(0))

    def step(self, state: F2SApState, batch: Batch | Draws | None = None) -> tuple[F2SApState, Info]:
        x, problem, oracles, penalty = state.x, self.problem, self.problem.oracles, self.penalty(state.k)
        copies, memories, gradient, model = self.track(state, self.inner_steps, batch)
        last = seen_by(model, draws(batch)[self.draws - 1])
        shares, weights = (jnp.asarray(each, penalty.dtype) for each in difference(self.order))

        def gradients(copy: PyTree, share: Array) -> tuple[Scalar, PyTree]:
            f, g = oracles.outer_gradients(x, copy, last), oracles.inner_gradients(x, copy, last)
            return f.value, tree.add(scaled(share, f.x), scaled(penalty, g.x))

        def value(x: PyTree) -> Scalar:
            f, g = (jax.vmap(lambda y, of=of: of(x, y, last))(copies) for of in (problem.f, problem.g))
            return total(shares.astype(f.dtype) * f + scaled(penalty, g))

        total = lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1)
        values, parts = jax.vmap(gradients)(copies, shares)
        hypergradient = jax.tree.map(total, parts)
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)
        metrics = {"penalty": penalty.astype(values.dtype)}
        info = Info(values[0], hypergradient, gradient, metrics, model)
        return F2SApState(x, *apart(copies), memories, outer_memory, state.k + 1), info

    def track(
        self, state: F2SApState, steps: int, batch: Batch | Draws | None
    ) -> tuple[PyTree, PyTree, PyTree, Carried | None]:
        """Take `steps` steps of every copy on g + (j/λ)f, the t-th one on the t-th draw.

        Return the copies, their memories, ∇_y g at the start of the first, and the model's state, carried
        along with it.
        """
        drawn, model = draws(batch), carried_state(self.problem, batch) if steps > 1 else None
        x, problem, oracles, penalty = state.x, self.problem, self.problem.oracles, self.penalty(state.k)
        shares = jnp.asarray(difference(self.order)[0], penalty.dtype) / penalty

        def step(batch: Batch | None, copy: PyTree, memory: PyTree, share: Array) -> tuple[Any, ...]:
            gradient = oracles.inner_gradient(x, copy, batch)
            mixed = tree.add(gradient, scaled(share, oracles.outer_gradients(x, copy, batch).y))
            value = lambda y: problem.g(x, y, batch) + scaled(share, problem.f(x, y, batch))
            return *descend(self.inner, mixed, memory, copy, value), gradient

        def every(carry: tuple[Any, ...], t: Array) -> tuple[Any, ...]:
            copies, memories, met, (_, model) = carry
            batch = with_state(drawn[t], model)
            models = model, next_state(problem, x, apart(copies)[0], batch, model)
            copies, memories, gradients = jax.vmap(partial(step, batch))(copies, memories, shares)
            return (copies, memories, select(t == 0, apart(gradients)[0], met), models), None

        carry = together(state.y, state.z), state.inner, tree.zeros_like(state.y), (model, model)
        (*end, models), _ = lax.scan(every, carry, jnp.arange(steps, dtype=jnp.int32))
        return *end, carried(*models)

    def warm_up(self, state: F2SApState, batch: Batch | Draws | None = None) -> F2SApState:
        copies, memories, *_ = self.track(state, 1, first(batch))
        y, z = apart(copies)
        return state._replace(y=y, z=z, inner=memories)

    def suspicion(self, state: F2SApState, batch: Batch | Draws | None = None) -> Finding | None:
        """Report that jf + λg is not convex in y for the lowest or highest j, if it curves downwards there."""
        shares, penalty = difference(self.order)[0], float(self.penalty(state.k))
        copies = together(state.y, state.z)
        ends = np.argmin(shares), np.argmax(shares)
        low, high = (jax.tree.map(lambda a, at=at: a[at], copies) for at in ends)
        of_f, of_g = (float(c) for c in self.problem.compiled(curvatures)(state.x, low, high, first(batch)))
        found = (not_convex(of_f, of_g, penalty, int(share)) for share in (shares.min(), shares.max()))
        return next(filter(None, found), None)


@factory()
def f2sa_p(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    penalty: Number | Schedule,
    order: int = 2,
    inner_steps: int = 10,
    batches: str = "independent",
) -> F2SAp:
    """Take a difference of order p in ν = 1/λ for ∇Φ(x), the derivative in ν at 0 of ∇_x min_y (νf + g)(x, y):

        y_j     ← y_j − α (∇_y g(x_k, y_j) + (j/λ) ∇_y f(x_k, y_j))             K times, for each j
        x_{k+1} = x_k − η Σ_j a_j (j ∇_x f(x_k, y_j) + λ ∇_x g(x_k, y_j))          j = −⌊p/2⌋, …, ⌈p/2⌉

    where Σ_j a_j φ(jν)/ν = φ'(0) + O(ν^p). As a_0 = 0 for even p, it needs p copies, and p + 1 for odd p. The limit is
    off by O(λ^−p). p = 1 is `bl.solvers.f2ba` (y = y_1, z = y_0), at twice its gradients of f in y. p = 2 costs the
    same as p = 1 and its bias is O(1/λ²). So a moderate λ is enough, and it multiplies less noise and rounding. The
    price is a condition on both sides: (j/λ)f + g must be strongly convex in y for negative j too, that is λ > ⌈p/2⌉ℓ/μ
    if f is ℓ-smooth in y, whether convex or not.

    L. Chen, J. Li, E. M. Chayti, J. Zhang, "Faster gradient methods for highly-smooth stochastic bilevel optimization",
    ICLR 2026. In the authors' code every gradient has its own data, x moves by a normalized step (for that, pass
    `optax.chain(optax.normalize_by_update_norm(), optax.sgd(η))`), and the copies of either sign are set to their
    average before each outer step. Here all copies share a draw, as the difference then cancels most of the noise, and
    each copy continues from its last value. Without these three differences it agrees with theirs step for step.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation; each copy has its own memory.
        outer: η as a float, or any optax transformation.
        penalty: λ as a float, or a function k ↦ λ_k such as an optax schedule.
        order: p, the order of the difference.
        inner_steps: K, the number of steps on each copy per step on x.
        batches: "independent", a draw for every step of the copies, the last of which moves x too; or "shared", one
            draw per step.
    """
    return F2SAp(problem, inner, outer, penalty, order, inner_steps, batches)


def difference(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the j and a_j with a_j ≠ 0; j = 1 first, the others in ascending order."""
    points = range(-(order // 2), (order + 1) // 2 + 1)
    over = lambda j: math.prod(j - m for m in points if m != j)
    weights = {j: Fraction(math.prod(-m for m in points if m not in (0, j)), over(j)) for j in points if j}
    weights[0] = -sum(weights.values(), Fraction(0))
    shares = sorted((j for j in points if weights[j]), key=lambda j: (j != 1, j))
    return np.array(shares, float), np.array([float(weights[j]) for j in shares])


def together(y: PyTree, others: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), y, others)


def apart(copies: PyTree) -> tuple[PyTree, PyTree]:
    return jax.tree.map(lambda a: a[0], copies), jax.tree.map(lambda a: a[1:], copies)
