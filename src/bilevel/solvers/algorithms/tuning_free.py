"""Bilevel optimization without step sizes: the method measures every step size while it runs."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Array, Int
from optax import tree

from bilevel.batch import first
from bilevel.checks import check_map
from bilevel.identity import Static
from bilevel.oracles import Along, Gradients
from bilevel.solvers.kit import Batch, Draws, Info, Problem, Solver, Traits
from bilevel.solvers.messages import Finding
from bilevel.solvers.options import check_weight, count, factory, field
from bilevel.solvers.parts.estimates import noise_share
from bilevel.solvers.parts.line_search import Change, line_search
from bilevel.solvers.parts.newton import Product, curvature_along, minimize, resolution, truncated_cg
from bilevel.solvers.parts.trees import divide, dot, scaled, select
from bilevel.solvers.rules import check_projection
from bilevel.types import Number, PyTree, Scalar

AGREEMENT = 0.5  # the share of h that another pass may change, and of Φ's slope that y's error may hide
MOST_PASSES = 10
NOISE = 1e-6  # the share of a changed batch above which a step counts as noisy
FADING = 2 / 3
# Shares of the start: a larger rise of f, or a larger remainder of ∇_y g, is reported.
RISEN, UNSOLVED = 1e-3, 0.1
MANY, SMALL = 5, 1e-3  # a stall: steps to judge by, and the share of the largest ‖h‖ that is no stall


class Seen(NamedTuple):
    """Directions of a batch at a point (x, y, v)."""

    gradient: PyTree  # ∇_y g
    residual: PyTree  # ∇²_yy g v − ∇_y f
    hypergradient: PyTree  # ∇_x f − ∇²_xy g v


class TuningFreeState(NamedTuple):
    x: PyTree
    y: PyTree
    v: PyTree
    step_size: Scalar  # β_k, the one to try; zero until y and v have settled at x_0
    slack: Scalar  # C_k − Φ(x_k), the rise that a step may use
    noise: Scalar  # n_k, the number of noisy steps so far
    seen: Seen  # at (x, y, v), on the last batch
    refused: Int[Array, ""]  # trials since the last one that was accepted
    local: Scalar  # a local 1/L, by which stationarity is measured; zero until x has moved


class Trial(NamedTuple):
    """y and v at a new x, with the directions there."""

    y: PyTree
    v: PyTree
    seen: Seen
    value: Scalar
    agreed: Any
    passes: Int[Array, ""]
    inner_steps: Int[Array, ""]
    adjoint_steps: Int[Array, ""]


class TuningFree(Solver):
    tol: Number = field(converter=partial(check_weight, name="tol", of="the error that a pass may leave"))
    project: Static = field(static=True)
    max_inner_steps: int = field(static=True, converter=count("max_inner_steps"))
    name: ClassVar[str] = "tuning-free"
    traits: ClassVar[Traits] = Traits(outer_at="start")
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "v")

    def init(self, x0: PyTree, y0: PyTree, batch: Batch | None = None) -> TuningFreeState:
        x, y = self.prepare(x0, y0, batch)
        self._check_projection(x)
        zero, nothing = jnp.zeros((), tree.norm(x).dtype), tree.zeros_like(y)
        seen = Seen(nothing, nothing, tree.zeros_like(x))
        return TuningFreeState(x, y, nothing, zero, zero, zero, seen, jnp.int32(0), zero)

    def step(self, state: TuningFreeState, batch: Batch | None = None) -> tuple[TuningFreeState, Info]:
        x, y, v, beta = state.x, state.y, state.v, state.step_size
        real, begins, oracles = beta.dtype, beta == 0, self.problem.oracles
        g, f = oracles.along(x, y, v, batch), oracles.outer_gradients(x, y, batch)
        here, eps = look(g, f), resolution((x, y))
        blur = min(1000 * eps, eps**0.5)  # the relative size of a change that may be rounding
        f_here, h = f.value.astype(real), here.hypergradient

        f_y, cross = tree.norm(f.y).astype(real), tree.norm(tree.sub(f.x, h))
        floors = jnp.abs(f_here) + f_y * tree.norm(y).astype(real), f_y, tree.norm(f.x) + cross
        changed = jnp.where(begins, 0, noise_share(state.seen, here, v, [blur * floor for floor in floors]))
        noisy = changed > NOISE
        noise = state.noise + jnp.where(noisy, changed, 0)
        gain = (1 + noise) ** -FADING  # γ_k, exactly 1 as long as all steps see the same data

        ahead = self._project(tree.sub(x, scaled(gain * beta, h)))
        move = tree.sub(ahead, x)
        slope, rounding = dot(h, move), 10 * eps * jnp.abs(f_here)
        held = Seen(*(scaled(noisy, part) for part in here))  # if the batch is noise, y and v only follow x
        hidden = jnp.where(begins, jnp.inf, jnp.maximum(AGREEMENT * jnp.abs(slope), rounding))
        trial = self._follow(ahead, y, v, held, here, f_here, hidden, batch)

        there, drift = trial.seen, dot(held.residual, tree.sub(trial.y, y)).astype(real)
        unsolved = dot(v, tree.sub(here.gradient, held.gradient)).astype(real)
        rise = trial.value + drift - (f_here - unsolved)
        rise = jnp.where(noisy, jnp.maximum(rise, (slope + dot(there.hypergradient, move)) / 2), rise)
        step = Change(move, h, there.hypergradient, rise, trial.value, trial.agreed, noisy)
        accepted, finite, after, slack, local = line_search(state, step, gain, rounding, blur)

        correct = lambda: self._correct(ahead, trial, gain, batch)
        corrected = lax.cond(noisy & accepted, correct, lambda: (trial.y, trial.v, there))
        x, (y, v, seen) = select(accepted, (ahead, corrected), (x, (y, v, here)))
        refused = jnp.where(accepted, 0, state.refused + 1)
        metrics = {
            "outer_step_size": gain * beta,
            "accepted": accepted.astype(real),
            "finite": finite.astype(real),
            "noise": noise,
            "inner_gradient": tree.norm(g.gradient),
            "inner_steps": trial.inner_steps,
            "adjoint_steps": trial.adjoint_steps,
        }
        if self.project.value is not None:
            metrics["stationarity"] = self._stationarity(state, h)
        state = TuningFreeState(x, y, v, after, slack, noise, seen, refused, local)
        return state, Info(f.value, h, g.gradient, metrics)

    def _check_projection(self, x: PyTree) -> None:
        if self.project.value is None:
            return
        check_projection(self.project.value, x)
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(x)):
            return
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self.project.value(x))):
            raise ValueError("project returned NaN or infinity at x0: return the nearest point of the set")

    def _project(self, x: PyTree) -> PyTree:
        return x if self.project.value is None else self.project.value(x)

    def _stationarity(self, state: TuningFreeState, h: PyTree) -> Scalar:
        """Return ‖x − P(x − sh)‖/s with s a local 1/L: a long s makes it small on any bounded set."""
        s, x = state.local, state.x
        mapped = tree.norm(tree.sub(x, self._project(tree.sub(x, scaled(s, h)))))
        return jnp.where(s > 0, divide(mapped, s), tree.norm(h))

    def _follow(self, x, y, v, held, here, f_here, hidden, batch) -> Trial:
        """Move y and v along with x in passes, each closer by the factor `tol`, until h and Φ are reliable."""
        oracles, most = self.problem.oracles, self.max_inner_steps
        real = f_here.dtype
        eps = 10 * resolution((x, y))

        unsettled = lambda trial: ~trial.agreed & (trial.passes < MOST_PASSES)

        def settle(trial: Trial) -> Trial:
            accuracy = jnp.asarray(self.tol, tree.norm(y).dtype)
            inner = minimize(self.problem, x, trial.y, held.gradient, batch, accuracy, most)
            hessian = oracles.curvature(x, inner.solution, batch).shared().hessian
            f = oracles.outer_gradients(x, inner.solution, batch)
            target = tree.add(f.y, held.residual)
            left = tree.sub(hessian(trial.v), target)
            adjoint = truncated_cg(hessian, left, accuracy * tree.norm(left), most)
            v = tree.sub(trial.v, adjoint.solution)
            g = oracles.along(x, inner.solution, v, batch)
            seen = look(g, f)
            error = dot(v, tree.sub(g.gradient, held.gradient)).astype(real)
            rounding = eps * (tree.norm(f.x) + tree.norm(g.cross))
            h = seen.hypergradient
            change = tree.norm(tree.sub(h, trial.seen.hypergradient))
            agreed = (change <= jnp.maximum(AGREEMENT * tree.norm(h), rounding)) & (jnp.abs(error) <= hidden)
            return Trial(
                inner.solution,
                v,
                seen,
                f.value.astype(real) - error,
                agreed & inner.settled & (trial.passes > 0),
                trial.passes + 1,
                trial.inner_steps + inner.products,
                trial.adjoint_steps + adjoint.products,
            )

        zero = jnp.int32(0)
        start = Trial(y, v, here, f_here, jnp.array(False), zero, zero, zero)
        return lax.while_loop(unsettled, settle, start)

    def _correct(self, x, trial: Trial, gain, batch) -> tuple[PyTree, PyTree, Seen]:
        """Take γ of one steepest descent step on y and on v, of the best length: for noisy batches."""
        oracles = self.problem.oracles
        hessian = oracles.curvature(x, trial.y, batch).shared().hessian
        s, w = steepest(hessian, trial.seen.gradient), steepest(hessian, trial.seen.residual)
        y, v = tree.sub(trial.y, scaled(gain, s)), tree.sub(trial.v, scaled(gain, w))
        return y, v, look(oracles.along(x, y, v, batch), oracles.outer_gradients(x, y, batch))

    def warm_up(self, state: TuningFreeState, batch: Batch | Draws | None = None) -> TuningFreeState:
        accuracy, still = jnp.asarray(self.tol, tree.norm(state.y).dtype), tree.zeros_like(state.y)
        solved = minimize(self.problem, state.x, state.y, still, first(batch), accuracy, self.max_inner_steps)
        return state._replace(y=solved.solution)

    def findings(self, trace: dict[str, np.ndarray]) -> list[Finding]:
        """Report an unreliable end, or a stall: most of the last trials were refused while h was not small."""
        found = self._unsolved(trace) or self._stalled(trace)
        return [] if found is None else [found]

    def _unsolved(self, trace: dict[str, np.ndarray]) -> Finding | None:
        """Report that f rose, or that ∇_y g did not fall: then y was too far from y*(x)."""
        if not {"noise", "inner_gradient", "outer_value"} <= trace.keys() or trace["noise"][-1] > 0:
            return None
        values, gradients = trace["outer_value"], trace["inner_gradient"]
        if len(values) > 2 and values[-1] > values[1] + RISEN * abs(values[1]):
            return Finding("outer_value_risen", {"start": values[1], "end": values[-1]})
        if len(values) > 2 and gradients[-1] > UNSOLVED * gradients[0] > RISEN * gradients.max():
            return Finding("inner_unsolved", {"gradient": gradients[-1]})
        return None

    def _stalled(self, trace: dict[str, np.ndarray]) -> Finding | None:
        last = -(len(trace.get("accepted", ())) // 2)
        if last > -MANY or "hypergradient_norm" not in trace:
            return None
        trials = {"count": -last, "thinned": "step" in trace}
        if not trace["finite"][last:].any():
            return Finding("trials_not_finite", trials)
        accepted = trace["accepted"][last:].mean()
        norms = trace.get("stationarity", trace["hypergradient_norm"])
        if accepted >= 0.5 or norms[-1] <= SMALL * norms.max():
            return None
        return Finding("trials_refused", trials | {"share": 1 - accepted, "norm": norms[-1]})


def look(g: Along, f: Gradients) -> Seen:
    return Seen(g.gradient, tree.sub(g.hessian, f.y), tree.sub(f.x, g.cross))


def steepest(hessian: Product, r: PyTree) -> PyTree:
    """Return r, of the length that ends the descent along it; zero where there is no positive curvature."""
    return scaled(divide(dot(r, r), curvature_along(r, hessian(r))), r)


@factory(accuracy="tol")
def tuning_free(
    problem: Problem,
    *,
    project: Callable[[PyTree], PyTree] | None = None,
    tol: Number = 0.1,
    max_inner_steps: int = 200,
) -> TuningFree:
    """Try one step per iteration, from (x, y, v) with h = ∇_x f − ∇²_xy g v; y' and v' follow x' before it is judged:

        x'  = P(x − γβh)                                             P the projection, if there is one
        y'  : truncated Newton steps on g(x', ·) from y until ‖∇_y g‖ is a tenth of its value on arrival
        v'  : conjugate gradients on ∇²_yy g(x', y') v = ∇_y f(x', y') from v, likewise
              both again, until another pass changes h' by less than ½‖h'‖ and |⟨v', ∇_y g⟩| ≤ ½|⟨h, x' − x⟩|

        Φ'  = f(x', y') − ⟨v', ∇_y g(x', y')⟩                        wrong by a product of errors only
        accepted if  Φ' ≤ Φ + s + 10⁻⁴ ⟨h, x' − x⟩                    then s ← 0.85 (s + Φ − Φ')
                     β ← ⟨Δx, Δh⟩/‖Δh‖², within a factor of 10 of β    and 10β if ⟨Δx, Δh⟩ ≤ 0
        otherwise    x, y and v stay and β shrinks to a tenth … a half, where a parabola has its minimum

    The first step moves only y and v; then β = 0.1 |f|/‖h‖². No number here has a unit, so in other units of f, g, x
    and y the iterates are the same, up to those units and rounding. There is no sum or maximum over the past, so a
    trial that went wrong, even to NaN, has no lasting effect. After ten refusals in a row a finite trial is accepted
    (the branch of y may have ended). If most are refused while ‖h‖ is not small, the status reports that the run has
    stalled.

    **Minibatches.** Δh and Φ' − Φ use one batch, as every step evaluates its starting point again. A difference from
    the last batch at that same point is noise, and n counts the noisy steps, each by its share of noise. In a noisy
    step y and v only follow the change of x (∇_y g and the residual keep their values at x), then take γ of one
    steepest descent step; β changes by at most 2^γ and s = 0. There γ = (1 + n)^(−2/3); with one batch n = 0 and γ = 1.

    **Proven.** If y' and v' are exact this is spectral projected gradient descent (Birgin, Martínez, Raydan 2000) with
    the line search of Zhang and Hager (2004): ∇Φ tends to zero for convex, smooth Φ that is bounded below. **Observed
    only**: that the passes make y' and v' exact enough, and every claim about other Φ and about minibatches. The
    documentation has a page with the proof and the problems on which it was measured.

    Args:
        problem: the two objectives.
        project: the projection of x onto a closed convex set, from x's tree to itself, such as those in
            `optax.projections`. The tolerance of a run and the trace's "stationarity" are then ‖x − P(x − sh)‖/s, with
            s = min(‖Δx‖/‖Δh‖, β) of the last accepted step that moved x, and ‖h‖ before the first.
        tol: how far a pass reduces the errors of y and v, at most 1. It changes the cost, but hardly the result.
        max_inner_steps: the most Hessian products of a pass on each of y and v.
    """
    if project is not None:
        check_map(project)
    return TuningFree(problem, tol, Static(project), max_inner_steps)
