"""MEHA: a single loop without second derivatives, through the Moreau envelope of the inner problem."""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int
from optax import tree

from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, factory, field, positive, rule_of
from bilevel.solvers.parts.penalty import Penalty, as_penalty, mixture, penalized
from bilevel.solvers.parts.trees import scaled
from bilevel.types import Number, PyTree, Schedule, StepSize


class MEHAState(NamedTuple):
    x: PyTree
    y: PyTree
    theta: PyTree  # tracks the proximal point of g(x, ·) at y
    inner: PyTree  # memory of the inner rule
    auxiliary: PyTree  # memory of the auxiliary rule
    outer: PyTree  # memory of the outer rule
    k: Int[Array, ""]


class MEHA(ExplicitSolver):
    penalty: Penalty = field(converter=as_penalty)
    proximal_step: Number = field(converter=positive("proximal step"))
    auxiliary: Rule = field(converter=rule_of("auxiliary"))
    name: ClassVar[str] = "MEHA"
    traits: ClassVar[Traits] = Traits(
        first_order=True, penalized=True, inner_rule="minimum", outer_at="start"
    )
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "theta")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> MEHAState:
        x, y = self.prepare(x0, y0, batch)
        memories = self.inner.init(y), self.auxiliary.init(y), self.outer.init(x)
        return MEHAState(x, y, y, *memories, jnp.int32(0))

    def step(self, state: MEHAState, batch: Batch | None = None) -> tuple[MEHAState, Info]:
        x, y, penalty = state.x, state.y, self.penalty(state.k)
        problem, oracles = self.problem, self.problem.oracles
        over_gamma = lambda tree: scaled(1 / jnp.asarray(self.proximal_step), tree)
        distance = lambda a, b: over_gamma(0.5 * tree.norm(tree.sub(a, b), squared=True))  # ‖a − b‖²/(2γ)

        toward = tree.add(oracles.inner_gradient(x, state.theta, batch), over_gamma(tree.sub(state.theta, y)))
        envelope = lambda theta: problem.g(state.x, theta, batch) + distance(theta, state.y)
        theta, auxiliary_memory = descend(self.auxiliary, toward, state.auxiliary, state.theta, envelope)

        f, at_y = oracles.outer_gradients(x, y, batch), oracles.inner_gradients(x, y, batch)
        gap = tree.sub(at_y.x, oracles.inner_gradients(x, theta, batch).x)
        hypergradient = tree.add(f.x, scaled(penalty, gap))
        price = penalized(problem, state.y, theta, penalty, batch, batch)
        value = lambda x: scaled(1 / penalty, price(x))
        x, outer_memory = descend(self.outer, scaled(1 / penalty, hypergradient), state.outer, x, value)

        direction = tree.add(
            scaled(1 / penalty, oracles.outer_gradients(x, y, batch).y),
            tree.sub(oracles.inner_gradient(x, y, batch), over_gamma(tree.sub(y, theta))),
        )
        value = lambda y: mixture(problem, x, penalty, batch)(y) - distance(y, theta)
        y, inner_memory = descend(self.inner, direction, state.inner, y, value)
        state = MEHAState(x, y, theta, inner_memory, auxiliary_memory, outer_memory, state.k + 1)
        return state, Info(f.value, hypergradient, at_y.y, {"penalty": penalty.astype(f.value.dtype)})

    def warm_up(self, state: MEHAState, batch: Batch | Draws | None = None) -> MEHAState:
        state = super().warm_up(state, batch)
        return state._replace(theta=state.y)


@factory(proximal="proximal_step")
def meha(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    penalty: Number | Schedule,
    proximal_step: Number,
    auxiliary: StepSize | Rule | None = None,
) -> MEHA:
    """Penalize g(x, y) − v_γ(x, y), where v_γ(x, y) = min_θ g(x, θ) + ‖θ − y‖²/(2γ):

        θ_{k+1} = θ_k − η (∇_y g(x_k, θ_k) + (θ_k − y_k)/γ)
        x_{k+1} = x_k − α (∇_x f(x_k, y_k)/c_k + ∇_x g(x_k, y_k) − ∇_x g(x_k, θ_{k+1}))
        y_{k+1} = y_k − β (∇_y f(x_{k+1}, y_k)/c_k + ∇_y g(x_{k+1}, y_k) − (y_k − θ_{k+1})/γ)

    The envelope is smooth also where g is not convex in y, if γ is below the inverse of its weak convexity ρ. The
    publication asks for γ < 1/(2ρ). With a constant penalty c the limit is off by O(1/c). f/c + g − v_γ, which y
    descends, must be bounded below: if f curves downwards by ℓ, that takes c > ℓ(1 + γμ)/(γμ²) for a μ-strongly convex
    g. The reported estimate of ∇Φ is c_k times the direction of x.

    R. Liu, Z. Liu, W. Yao, S. Zeng, J. Zhang, "Moreau envelope for nonconvex bi-level optimization: a single-loop and
    Hessian-free solution strategy", ICML 2024, have c_k = c_0 (k+1)^p with p < 1/2. Its constraint sets and non-smooth
    terms are missing here. The order, θ, then x, then y at the new x, is the same as in the publication and in the
    authors' R code. Their PyTorch code and BOAT move y before x.

    Args:
        problem: the two objectives.
        inner: β as a float, or any optax transformation.
        outer: α as a float, or any optax transformation of the direction divided by c_k.
        penalty: c as a float, or a function k ↦ c_k such as an optax schedule.
        proximal_step: γ, the step size of the proximal point.
        auxiliary: η as a float, or any optax transformation; the default is `inner`.
    """
    auxiliary = inner if auxiliary is None else auxiliary
    return MEHA(problem, inner, outer, penalty, proximal_step, auxiliary)
