"""Numbers of inner and adjoint steps with the fewest certified oracle calls."""

from typing import NamedTuple

import numpy as np

from bilevel.checks import MANY, check_count
from bilevel.theory.certificates.certificate import GAP
from bilevel.theory.certificates.star import aid, contraction, tracking
from bilevel.theory.constants import Blocks, Constants
from bilevel.theory.reals import Real, check_kappa, nonnegative, positive, scalar

FOREVER = 2.0**60  # steps after which the bound times K is constant
SHARES = (1.0, 0.8, 0.6, 0.4, 0.2)  # of the largest β, for comparing N and Q


class Plan(NamedTuple):
    """`iterations` steps of `bl.aid(problem, inner=alpha, adjoint=steps(eta, Q), outer=beta, inner_steps=N)`.

    N is `inner_steps`, Q is `adjoint_steps`, and `steps` is `bl.adjoints.steps`.
    """

    alpha: float
    eta: float
    beta: float
    inner_steps: int
    adjoint_steps: int
    iterations: int
    calls: int  # of oracles: N + 2 gradients and Q + 1 products per iteration


@np.errstate(over="ignore", invalid="ignore")
def cheapest(
    constants: Constants | Blocks,
    eps: Real,
    gap: Real,
    y_error: Real = 0.0,
    v_error: Real | None = None,
    most: int | None = None,
) -> Plan:
    """Return the (α, η, N, Q) of AID that certify a mean of ‖∇Φ‖² ≤ ε with the fewest oracle calls.

    The error's gain grows with both contraction rates, so α = η = 2/(L_yy + μ) is best for every N and Q. N
    and Q are searched up to `most`, by default ten condition numbers. Constants must be scalars.
    """
    k = Blocks.of(constants)
    check_kappa(k.kappa)
    if np.ndim(k.L_Phi) or np.ndim(k.kappa):
        raise ValueError("one plan is for one set of constants: pass scalars")
    eps, gap = scalar(positive(eps, "eps"), "eps"), scalar(positive(gap, "gap", GAP), "gap")
    y_error = scalar(nonnegative(y_error, "y_error"), "y_error")
    v_error = None if v_error is None else scalar(nonnegative(v_error, "v_error"), "v_error")
    most = max(2, int(10 * k.kappa)) if most is None else min(check_count(most, "most", most=MANY), 10**15)
    counts = np.unique(np.geomspace(1, most, 60).round())
    N, Q = _fewest_calls(k, counts[:, None], counts, eps, gap, y_error, v_error)
    near = lambda n: _spread(max(1, int(n / 1.1) - 1), min(most, int(n * 1.1) + 1))
    N, Q = _fewest_calls(k, near(N)[:, None], near(Q), eps, gap, y_error, v_error)
    best = aid(constants, inner_steps=int(N), adjoint_steps=int(Q))
    beta = best.best_beta(FOREVER, gap, y_error, v_error, slack=0.0)
    needed = np.ceil(FOREVER * best.bound(FOREVER, gap, y_error, v_error, beta) / eps)
    if not np.isfinite(needed):
        raise ValueError(
            f"no number of steps that float64 holds reaches eps = {eps:g} from gap = {gap:g} and y_error = "
            f"{y_error:g}: take a larger eps, or a better start"
        )
    iterations = max(int(needed), 1)
    calls = iterations * int(N + Q + 3)
    return Plan(float(best.alpha), float(best.alpha), float(beta), int(N), int(Q), iterations, calls)


def _spread(low: int, high: int) -> np.ndarray:
    """Return all counts from `low` to `high`, or a hundred of them."""
    return np.unique(np.linspace(low, high, min(high - low + 1, 100)).round())


def _fewest_calls(k: Blocks, N: np.ndarray, Q: np.ndarray, eps, gap, y_error, v_error) -> tuple[float, float]:
    _, rate = contraction(k, None, "alpha")
    r, t = rate**N, rate**Q
    system, weights, start = tracking(k, r, t, (1 - t) / k.mu)
    a, b = start(y_error, v_error)
    # From an exact start the largest β is best. From other starts the best is not much smaller.
    lowest = np.inf
    for share in SHARES:
        beta = share * system.beta_max
        lowest = np.minimum(lowest, system.bound(beta, FOREVER, gap, weights[0] * a, weights[1] * b))
    total = FOREVER * lowest
    calls = np.maximum(np.ceil(total / eps), 1) * (N + Q + 3)
    i, j = np.unravel_index(np.argmin(calls), calls.shape)
    return float(N[i, 0]), float(Q[j])
