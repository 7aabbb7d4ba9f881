"""DARTS' two updates (Liu, Simonyan & Yang 2019) and SAMA (Choe et al. 2023), which avoid second derivatives of g."""

from typing import ClassVar

import jax.numpy as jnp
from optax import tree

from bilevel.oracles import Oracles
from bilevel.solvers.kit import Batch, ExplicitSolver, ExplicitState, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, factory, field, positive
from bilevel.solvers.parts.inner import inner_loop
from bilevel.solvers.parts.lagrangian import lagrangian
from bilevel.solvers.parts.trees import scaled
from bilevel.solvers.parts.unroll import update
from bilevel.types import Number, PyTree, StepSize


def cross_difference(
    oracles: Oracles, x: PyTree, y: PyTree, v: PyTree, epsilon: Number, batch: Batch | None
) -> PyTree:
    """Return (∇_x g(x, y + hv) − ∇_x g(x, y − hv)) / 2h ≈ ∇²_xy g(x, y)·v, with h = epsilon / ‖v‖.

    The displacement hv always has length `epsilon`. The error is (‖v‖·epsilon²/6) times a third
    derivative of ∇_x g in y, plus rounding of order ‖v‖·eps/epsilon.
    """
    norm = tree.norm(v)
    h = jnp.asarray(epsilon, norm.dtype) / (norm + jnp.finfo(norm.dtype).tiny)  # v = 0 gives 0, not 0/0
    ahead = oracles.inner_gradients(x, tree.add_scale(y, h, v), batch).x
    behind = oracles.inner_gradients(x, tree.add_scale(y, -h, v), batch).x
    return tree.scale(1 / (2 * h), tree.sub(ahead, behind))


class DARTS(ExplicitSolver):
    virtual_step: Number = field(converter=positive("virtual step size"))
    displacement: Number = field(converter=positive("displacement"))
    name: ClassVar[str] = "DARTS"
    traits: ClassVar[Traits] = Traits(first_order=True)

    def step(self, state: ExplicitState, batch: Batch | None = None) -> tuple[ExplicitState, Info]:
        x, problem, oracles = state.x, self.problem, self.problem.oracles
        y, inner, gradient, *_ = inner_loop(problem, self.inner, 1, x, state.y, state.inner, batch)

        ahead = lambda x: tree.sub(y, scaled(self.virtual_step, oracles.inner_gradient(x, y, batch)))
        f = oracles.outer_gradients(x, ahead(x), batch)
        cross = cross_difference(oracles, x, y, f.y, self.displacement, batch)
        hypergradient = tree.sub(f.x, scaled(self.virtual_step, cross))
        value = lambda x: problem.f(x, ahead(x), batch)
        x, outer = descend(self.outer, hypergradient, state.outer, x, value)
        return ExplicitState(x, y, inner, outer), Info(f.value, hypergradient, gradient, {})


class FirstOrderDARTS(ExplicitSolver):
    name: ClassVar[str] = "DARTS, first order"
    traits: ClassVar[Traits] = Traits(first_order=True)

    def step(self, state: ExplicitState, batch: Batch | None = None) -> tuple[ExplicitState, Info]:
        x, problem = state.x, self.problem
        y, inner, gradient, *_ = inner_loop(problem, self.inner, 1, x, state.y, state.inner, batch)
        f = problem.oracles.outer_gradients(x, y, batch)
        x, outer = descend(self.outer, f.x, state.outer, x, lambda x: problem.f(x, y, batch))
        return ExplicitState(x, y, inner, outer), Info(f.value, f.x, gradient, {})


@factory(xi="virtual_step", epsilon="displacement")
def darts(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    virtual_step: Number,
    displacement: Number = 0.01,
) -> DARTS:
    """Run DARTS, second order: one virtual step on y, differentiated by a finite difference.

        y_{k+1} = y_k − α ∇_y g(x_k, y_k)
        y'      = y_{k+1} − ξ ∇_y g(x_k, y_{k+1})         b = ∇_y f(x_k, y'),   h = ε / ‖b‖
        x_{k+1} = x_k − β (∇_x f(x_k, y') − ξ (∇_x g(x_k, y_{k+1} + hb) − ∇_x g(x_k, y_{k+1} − hb)) / 2h)

    It neglects what single-loop ITD neglects: it looks one step ahead and treats (∇²_yy g)⁻¹ as ξI, so it has ITD's
    bias. The difference adds an error of order ε².

    Differences: a step of the publication begins with x and ends with y. Here it begins with y. The sequence of updates
    is the same except for the first one on x. In the publication ξ is the inner step size. The authors' code also uses
    the inner optimizer's momentum in the virtual step. Here y' is a plain gradient step.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        virtual_step: ξ, the length of the virtual step, usually the inner step size.
        displacement: ε, the displacement of y in the difference; 0.01 is the publication's.
    """
    return DARTS(problem, inner, outer, virtual_step, displacement)


@factory()
def darts_first_order(problem: Problem, *, inner: StepSize | Rule, outer: StepSize | Rule) -> FirstOrderDARTS:
    """Run DARTS, first order (ξ = 0): y and x descend in turn, each as if the other were a constant.

        y_{k+1} = y_k − α ∇_y g(x_k, y_k)
        x_{k+1} = x_k − β ∇_x f(x_k, y_{k+1})

    It neglects that y* depends on x, so the whole implicit term. If f does not contain x itself, as in data reweighting
    or hyperparameter tuning, x never moves. As in `bl.solvers.darts`, a step begins with y.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
    """
    return FirstOrderDARTS(problem, inner, outer)


class SAMA(ExplicitSolver):
    displacement: Number = field(converter=positive("displacement"))
    name: ClassVar[str] = "SAMA"
    traits: ClassVar[Traits] = Traits(differentiates_rule=True, first_order=True)

    def step(self, state: ExplicitState, batch: Batch | None = None) -> tuple[ExplicitState, Info]:
        x, problem, oracles = state.x, self.problem, self.problem.oracles
        gradient, value = oracles.inner_gradient(x, state.y, batch), lambda y: problem.g(state.x, y, batch)
        (y, moving), pull_rule, inner = update(self.inner, gradient, state.inner, state.y, value)

        f = oracles.outer_gradients(x, y, batch)
        minus_v, _, _ = pull_rule((f.y, tree.zeros_like(moving)))
        hypergradient = tree.add(f.x, cross_difference(oracles, x, y, minus_v, self.displacement, batch))
        value = lagrangian(problem, y, tree.scale(-1, minus_v), batch)
        x, outer = descend(self.outer, hypergradient, state.outer, x, value)
        return ExplicitState(x, y, inner, outer), Info(f.value, hypergradient, gradient, {})


@factory(epsilon="displacement")
def sama(
    problem: Problem, *, inner: StepSize | Rule, outer: StepSize | Rule, displacement: Number = 0.01
) -> SAMA:
    """Take one step of the inner rule u, then a finite difference along ∇_y f adapted to that rule:

        ŷ_k     = y_k⁰ − u(∇_y g(x_k, y_k⁰))                               y_k⁰ = ŷ_{k−1}
        v       = (∂u/∂∇_y g)ᵀ ∇_y f(x_k, ŷ_k),   h = ε / ‖v‖
        x_{k+1} = x_k − β (∇_x f(x_k, ŷ_k) − (∇_x g(x_k, ŷ_k + hv) − ∇_x g(x_k, ŷ_k − hv)) / 2h)

    It differentiates the fixed point u(∇_y g) = 0 and replaces the Jacobian ∂u/∂y by the identity. With gradient
    descent u = α∇_y g that is (∇²_yy g)⁻¹ ≈ αI, so its limit is single-loop ITD's, bias included. With an adaptive rule
    the guess is a diagonal that fits better. A step takes three gradients of g and no second derivative. The difference
    adds an error of order ε².

    Differences from the publication: here ∂u/∂∇_y g is the derivative of the optax rule, exact for every rule. The
    authors' code has a formula for Adam and the identity for SGD (v = ∇_y f without the step size α). As in their code
    (since July 2023; before, it left y at ŷ_k − hv), y is back at ŷ_k after the difference. Their ε is 1.0. Ours is
    smaller because the difference's error is: measured against the exact product, on reweighting with a small network,
    log-ridges, learned features and a Poisson regression, it is at most 1e-4 of the product with 0.01, in single
    precision too, and up to 0.33 with 1.0. Rounding adds about the precision divided by ε, so in half precision theirs
    is the better one.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        displacement: ε, the displacement of y in the difference, in units of y; the authors' is 1.0.
    """
    return SAMA(problem, inner, outer, displacement)
