"""BDA: an inner loop that follows both levels' gradients, for inner problems with many solutions."""

from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
from optax import tree

from bilevel.checks import check_not_negative, check_schedule
from bilevel.identity import Static
from bilevel.oracles import Curvature, Linearized
from bilevel.solvers.kit import Batch, Draws, ExplicitSolver, ExplicitState, Info, Problem, Traits, descend
from bilevel.solvers.options import Rule, check_batches, check_weight, factory, field, positive
from bilevel.solvers.parts.trees import scaled
from bilevel.solvers.parts.unroll import Field, Lengths, lengths, state_gradient, unroll
from bilevel.types import Number, PyTree, Scalar, Schedule, StepSize


class BDA(ExplicitSolver):
    mixing: Number = field(converter=partial(check_weight, name="mixing", of="the outer gradient"))
    outer_share: Number = field(converter=positive("outer_share"))
    fading: Static = field(static=True)
    lengths: Lengths = field(static=True)
    batches: str = field(static=True, converter=check_batches)
    name: ClassVar[str] = "BDA"
    traits: ClassVar[Traits] = Traits(differentiates_rule=True, uses_hessian=True)

    def step(self, state: ExplicitState, batch: Batch | Draws | None = None) -> tuple[ExplicitState, Info]:
        x, problem = state.x, self.problem
        field = aggregate(problem, self.mixing, self.outer_share, self.fading.value)
        loop = unroll(field, self.inner, self.lengths, x, state.y, state.inner, batch)
        y, inner_memory, gradient, pull_back, repeat, last, model = loop
        f = problem.oracles.outer_gradients(x, y, last)
        through_y, _ = pull_back(f.y, state_gradient(problem, x, y, last, model))
        hypergradient = tree.add(f.x, through_y)
        value = lambda x: problem.f(x, *repeat(x))
        x, outer_memory = descend(self.outer, hypergradient, state.outer, x, value)
        state = ExplicitState(x, y, inner_memory, outer_memory)
        return state, Info(f.value, hypergradient, gradient, {}, model)


def harmonic(t: Any) -> Any:
    """Return 1/(t+1), the weights in BDA's analysis."""
    return 1 / (t + 1)


@factory()
def bda(
    problem: Problem,
    *,
    inner: StepSize | Rule,
    outer: StepSize | Rule,
    inner_steps: int,
    mixing: Number = 0.5,
    outer_share: Number = 1.0,
    fading: Schedule = harmonic,
    truncate: int | None = None,
    checkpoint_every: int = 1,
    batches: str = "independent",
) -> BDA:
    """Unroll inner steps along a mixture of both gradients, where the outer part fades out:

        d_t     = (1 − a_t) ∇_y g(x_k, y_t) + a_t σ ∇_y f(x_k, y_t)         a_t = a φ(t),  φ(t) = 1/(t+1)
        y_{t+1} = y_t − α d_t                                             t = 0, …, N−1
        x_{k+1} = x_k − β d/dx f(x_k, y_N(x_k))

    Where g(x, ·) has several minimizers, ∇_y f leads to the one that is best for f. An inner loop on g leaves that to
    the starting point. Where there is only one minimizer, the mixture is a bias that shrinks with N. R. Liu, P. Mu, X.
    Yuan, S. Zeng, J. Zhang, "A generic first-order algorithmic framework for bi-level programming beyond lower-level
    singleton", ICML 2020, with step sizes s_l = α, s_u = ασ.

    Differences: there y starts from the same point at every outer step, here from the last y, as everywhere in this
    library. φ comes from its analysis. The authors' code fades differently: it keeps the inner gradient's weight at
    1 − a and multiplies the outer one's by 0.9 at every step, with a = 0.6. BOAT's implementation multiplies a_t by a
    constant c, which here is `fading=lambda t: c**t`.

    Args:
        problem: the two objectives.
        inner: α as a float, or any optax transformation.
        outer: β as a float, or any optax transformation.
        inner_steps: N, the number of steps on y per step on x.
        mixing: a, the outer gradient's weight in the first inner step, between 0 and 1.
        outer_share: σ, the outer gradient's step relative to the inner one's.
        fading: φ, a function of the inner step's number with values between 0 and 1.
        truncate: the number of the last inner steps to differentiate; the default is all.
        checkpoint_every: the distance between stored inner iterates, as in `bl.itd`.
        batches: "independent", a draw of both levels for every inner step; or "shared", one for all. As in `bl.itd`.
    """
    allowed = lambda value: check_not_negative(value, "fading of inner step 0")
    check_schedule(fading, jnp.zeros(()), allowed, "fading")
    loop = lengths(inner_steps, truncate, checkpoint_every)
    return BDA(problem, inner, outer, mixing, outer_share, Static(fading), loop, batches)


def aggregate(problem: Problem, mixing: Number, outer_share: Number, fading: Schedule) -> Field:
    """Return the field d_t and its products."""
    oracles = problem.oracles

    def mix(t: Any, of_g: PyTree, of_f: PyTree) -> PyTree:
        weight = jnp.asarray(mixing, float) * jnp.asarray(fading(jnp.asarray(t, float)), float)
        return tree.add(scaled(1 - weight, of_g), scaled(weight * jnp.asarray(outer_share, float), of_f))

    def direction(x: PyTree, y: PyTree, t: Any, batch: Batch | None) -> tuple[PyTree, PyTree]:
        gradient = oracles.inner_gradient(x, y, batch)
        return mix(t, gradient, oracles.outer_gradients(x, y, batch).y), gradient

    def linearize(x: PyTree, y: PyTree, t: Any, batch: Batch | None) -> Linearized:
        g, f = oracles.linearize(x, y, batch), oracles.linearize_outer(x, y, batch)
        of_both = lambda v: tuple(mix(t, *pair) for pair in zip(g.both(v), f.both(v), strict=True))
        return Linearized(mix(t, g.gradient, f.gradient), of_both)

    def curvature(x: PyTree, y: PyTree, t: Any, batch: Batch | None) -> Curvature:
        g, f = oracles.curvature(x, y, batch), oracles.outer_curvature(x, y, batch)
        hessian = lambda v: mix(t, g.hessian(v), f.hessian(v))
        return Curvature(hessian, cross=lambda v: mix(t, g.cross(v), f.cross(v)))

    def value(x: PyTree, y: PyTree, t: Any, batch: Batch | None) -> Scalar:
        return mix(t, problem.g(x, y, batch), problem.f(x, y, batch))

    return Field(problem, direction, linearize, curvature, value)
