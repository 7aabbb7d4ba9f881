"""The exact worst case of AID over all runs that obey the inequalities behind its certificates, for a few steps.

    pip install 'bilevel[worst-case]'
    python benchmarks/worst_case.py [--seed 0] [--record docs/measured]

Performance estimation (Drori & Teboulle 2014; Taylor, Hendrickx & Glineur 2017): a run of K steps is a handful of
vectors. Everything the analysis knows of it is linear in their inner products and in the values Φ(x_k), so the largest
mean of ‖∇Φ(x_k)‖² is a semidefinite program. The vectors live in three spaces that meet only through norms:

    x    G_k = ∇Φ(x_k), and the two parts of the hypergradient's error: t_k, ‖t_k‖ ≤ Λ_xy‖ŷ_k − y*_k‖, from ŷ_k,
         and c_k, ‖c_k‖ ≤ L_xy‖v̂_k − v*_k‖, from v̂_k;  x_{k+1} = x_k − β(G_k + t_k + c_k); Φ is L_Φ-smooth
    y    y*_k, ‖y*_i − y*_j‖ ≤ s‖x_i − x_j‖, and the inner gradient p_k at ŷ_{k−1};  ŷ_k = ŷ_{k−1} − αp_k
    v    v*_k, ‖v*_i − v*_j‖ ≤ V‖x_i − x_j‖, the product q_k = Ĥ_k(v̂_{k−1} − v*_k), and w_k, ‖w_k‖ ≤ Λ_yy‖ŷ_k − y*_k‖;
         v̂_k = v̂_{k−1} − η(q_k − w_k)

with ⟨p, u⟩ ≥ ‖p‖²/(L + μ) + μL/(L + μ)‖u‖² for what the inner gradient p makes of u = ŷ_{k−1} − y*_k, and for q. Real
problems obey all of this, and the certificates use nothing else: actual ≤ worst case ≤ bound.
"""

import argparse
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations, permutations, product

import jax
import numpy as np
import record
from worst_problems import searched

from bilevel import theory


class Space:
    """Vectors by name, in a basis whose Gram matrix is unknown. Inner products are linear forms in that matrix."""

    def __init__(self, names: list[str], zero: set[str]):
        self.names = [name for name in names if name not in zero]

    def __getitem__(self, name: str) -> np.ndarray:
        """A vector of the basis, or zero."""
        return np.array([float(name == other) for other in self.names])

    def dot(self, a: np.ndarray, b: np.ndarray) -> "Row":
        return Row({self: (np.outer(a, b) + np.outer(b, a)) / 2})

    def square(self, a: np.ndarray) -> "Row":
        return self.dot(a, a)


class Row(dict):
    """A linear form in the Gram matrices of the spaces and in other unknowns: coefficients by space."""

    def __add__(self, other: "Row") -> "Row":
        return Row({key: self.get(key, 0) + other.get(key, 0) for key in (*self, *other)})

    def __sub__(self, other: "Row") -> "Row":
        return self + -1.0 * other

    def __rmul__(self, factor: float) -> "Row":
        return Row({key: factor * value for key, value in self.items()})


def largest(objective: Row, limits: list[tuple[Row, float]], sizes: dict) -> float:
    """max objective subject to row ≤ limit for every (row, limit), Gram matrices positive semidefinite."""
    import cvxpy as cp
    import scipy.sparse as sp

    unknowns = {
        key: cp.Variable((n, n), PSD=True) if isinstance(key, Space) else cp.Variable(n)
        for key, n in sizes.items()
        if n
    }
    z = cp.hstack([cp.vec(unknown, order="C") for unknown in unknowns.values()])
    flat = lambda row: np.concatenate(
        [np.ravel(row.get(key, np.zeros(unknowns[key].shape))) for key in unknowns]
    )
    A, b = np.array([flat(row) for row, _ in limits]), np.array([limit for _, limit in limits])
    says = np.any(A != 0, axis=1)  # the others speak of vectors that are zero
    problem = cp.Problem(cp.Maximize(flat(objective) @ z), [sp.csr_array(A[says]) @ z <= b[says]])
    try:
        with warnings.catch_warnings(action="ignore"):  # of inaccuracy, which the status says as well
            problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-6, tol_gap_rel=1e-5, tol_feas=1e-6)
        status = problem.status
    except cp.SolverError:
        status = "not solved"
    if status in (cp.UNBOUNDED, cp.UNBOUNDED_INACCURATE):
        return np.inf
    if status != cp.OPTIMAL:
        raise RuntimeError(
            f"the semidefinite program ended as {status!r}: take fewer steps or a smaller beta"
        )
    return float(problem.value)


def worst_case(
    blocks: theory.Blocks,
    alpha: float,
    eta: float,
    beta: float,
    steps: int,
    gap: float,
    y_error: float = 0.0,
    v_error: float = 0.0,
    gap_to: str = "run",
) -> float:
    """sup (1/K) Σ_{k<K} ‖∇Φ(x_k)‖² over the runs described above, with ‖y₀ − y*₀‖ ≤ y_error, ‖v₀ − v*₀‖ ≤ v_error.

    Args:
        blocks: the constants; L_xy and the Λ must not be zero.
        alpha: α, the inner step.
        eta: η, the adjoint step.
        beta: β, the outer step.
        steps: K; the program has three matrices of about 3K rows.
        gap: Δ.
        y_error: of the start, before the first update.
        v_error: of the start, before the first update.
        gap_to: "run", Φ(x₀) − Φ(x_k) ≤ Δ for k ≤ K, which is what the certificates use; or "infimum",
            Φ(x₀) − inf Φ ≤ Δ, which allows less: inf Φ ≤ Φ(x_k) − ‖∇Φ(x_k)‖²/2L_Φ.
    """
    if gap_to not in ("run", "infimum"):
        raise ValueError(f'gap_to must be "run" or "infimum", got {gap_to!r}')
    k, K, s, V = blocks, steps, blocks.y_slope, blocks.v_slope
    # The origins are y*₀ and v*₀, so that "y*0" and "v*0" are free to name y₀ and v₀. What an exact start makes zero is
    # left out: a program with an interior is solved more accurately.
    zero = {"y*0", "p0", "t0", "w0"} if y_error == 0 else set()
    zero |= {"v*0", "q0"} if v_error == 0 else set()
    zero |= {"c0"} if y_error == v_error == 0 else set()
    names = lambda **counts: [f"{name}{i}" for name, n in counts.items() for i in range(n)]
    x = Space(names(G=1, D=K, t=K, c=K), zero)
    y = Space([*names(p=K), *(f"y*{i}" for i in range(K))], zero)
    v = Space([*names(q=K, w=K), *(f"v*{i}" for i in range(K))], zero)
    value = lambda i: Row(values=np.eye(K + 1)[i, 1:])  # Φ(x_i) − Φ(x₀)
    # Units: x in β, y in sβ, v in Vβ, p, q and w as the steps they make, t and c as what bounds them, Φ in β, and all
    # of it relative to the gap; the G_k by their changes. So the numbers of the program are of order one.
    unit, c, of_y, of_v = gap / beta, beta * k.L_Phi, beta * k.Lambda_xy * s, beta * k.L_xy * V
    G = [x["G0"] + c * sum((x[f"D{j}"] for j in range(i)), start=x[""]) for i in range(K + 1)]
    at_x, at_y, at_v, y_hat, v_hat = [x[""]], [], [], y["y*0"], v["v*0"]
    limits = [
        (y.square(y_hat), y_error**2 / (s * beta) ** 2 / unit),
        (v.square(v_hat), v_error**2 / (V * beta) ** 2 / unit),
    ]
    no_more = lambda small, large: limits.append((small - large, 0.0))
    for i in range(K):
        at_y.append(y[f"y*{i}" if i else ""])
        at_v.append(v[f"v*{i}" if i else ""])
        p, q, w, t, cross = y[f"p{i}"], v[f"q{i}"], v[f"w{i}"], x[f"t{i}"], x[f"c{i}"]
        for space, step, u, size in ((y, p, y_hat - at_y[i], alpha), (v, q, v_hat - at_v[i], eta)):
            curved = (1 / size) * space.square(step) + (size * k.mu * k.L_yy) * space.square(u)
            no_more(1 / (k.L_yy + k.mu) * curved, space.dot(step, u))
        y_hat, v_hat = y_hat - p, v_hat - q + w
        a, b = y.square(y_hat - at_y[i]), v.square(v_hat - at_v[i])
        no_more(v.square(w), (eta * k.Lambda_yy * s / V) ** 2 * a)
        no_more(x.square(t), a)
        no_more(x.square(cross), b)
        at_x.append(at_x[i] - (G[i] + of_y * t + of_v * cross))
    for i, j in combinations(range(K), 2):
        moved = x.square(at_x[i] - at_x[j])
        no_more(y.square(at_y[i] - at_y[j]), moved)
        no_more(v.square(at_v[i] - at_v[j]), moved)
    for i, j in permutations(range(K + 1), 2):  # interpolation by an L_Φ-smooth function
        change, d = G[i] - G[j], at_x[i] - at_x[j]
        curved = 1 / c * x.square(change) - c * x.square(d) + 2 * x.dot(change, d)
        no_more(value(j) + x.dot(G[j], d) + 0.25 * curved, value(i))
    for i in range(K + 1):
        below = 0.5 / c * x.square(G[i]) if gap_to == "infimum" else Row()
        limits.append((value(0) - value(i) + below, 1.0))
    objective = Row()
    for i in range(K):
        objective = objective + 1 / K * x.square(G[i])
    sizes = {space: len(space.names) for space in (x, y, v)} | {"values": K}
    return largest(objective, limits, sizes) * unit


KAPPAS, STEPS = (2, 5, 10), (1, 2, 3, 4, 6, 10)
LARGER = np.geomspace(1, 4, 21)[1:]  # than the best β of `star`: among which the best of all is looked for


def best_worst_case(
    blocks: theory.Blocks, alpha: float, eta: float, beta: float, steps: int
) -> tuple[float, float]:
    """The lowest worst case of β and some that are larger, and where it is."""
    found = [(worst_case(blocks, alpha, eta, beta, steps, 1.0), beta)]
    for larger in beta * LARGER:
        try:
            found.append((worst_case(blocks, alpha, eta, larger, steps, 1.0), larger))
        except RuntimeError:
            break
        if found[-1][0] > 2 * found[0][0]:
            break
    return min(found)


def shown(*values: float) -> list[str]:
    return [f"{value:.4g}".replace("e+0", "e") for value in values]


def found(kappa: int, c: theory.Certificate, beta: float, K: int, seed: int) -> float:
    """The largest that a search finds."""
    return searched(kappa, c.alpha, c.eta, beta, K, np.random.default_rng([seed, kappa, K]))[0]


Horizons = Sequence[tuple[int, int]]  # κ and K


def at_the_best_step(horizons: Horizons, seed: int) -> Iterator[list]:
    for kappa, K in horizons:
        constants = theory.Constants(1 / kappa, 1.0, 1.0, 1.0)
        c = theory.star.aid(constants)
        beta = c.best_beta(K, 1.0, 0.0, 0.0, slack=0.0)
        exact = partial(worst_case, constants.blocks, c.alpha, c.eta, beta, K, 1.0)
        worst, bound = exact(), c.bound(K, 1.0, 0.0, 0.0, beta)
        lowest, at = best_worst_case(constants.blocks, c.alpha, c.eta, beta, K)
        actual, less = found(kappa, c, beta, K, seed), exact(gap_to="infimum")
        yield [kappa, K, *shown(beta, actual, worst, bound, bound / worst, less, at, lowest)]


def from_no_adjoint(horizons: Horizons) -> Iterator[list]:
    for kappa, K in horizons:
        constants, far = theory.Constants(1 / kappa, 1.0, 1.0, 1.0), float(kappa)
        c = theory.star.aid(constants)
        beta = c.best_beta(K, 1.0, 0.0, far, slack=0.0)
        worst = worst_case(constants.blocks, c.alpha, c.eta, beta, K, 1.0, 0.0, far)
        bound = c.bound(K, 1.0, 0.0, far, beta)
        yield [kappa, K, *shown(beta, worst, bound, bound / worst)]


def at_the_papers_steps(horizons: Horizons, seed: int) -> Iterator[list]:
    for kappa, K in horizons:
        k = theory.Constants(1 / kappa, 1.0, 1.0, 1.0)
        paper = theory.aid(k)
        others = theory.star.aid(k, 1.0, 1.0), theory.tight.aid(k), theory.sharp.aid(k), paper
        worst = worst_case(k.blocks, paper.alpha, paper.eta, paper.beta, K, 1.0)
        bounds = (c.bound(K, 1.0, 0.0, 0.0, paper.beta) for c in others)
        yield [kappa, K, *shown(paper.beta, found(kappa, paper, paper.beta, K, seed), worst, *bounds)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    record.options(parser)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    horizons = list(product(*((KAPPAS[:1], STEPS[:2]) if options.quick else (KAPPAS, STEPS))))
    tables = {
        "worst-case-star": (
            [
                "found",
                "worst case",
                "star",
                "star/worst case",
                "to the infimum",
                "best β",
                "worst case there",
            ],
            at_the_best_step(horizons, options.seed),
        ),
        "worst-case-no-adjoint": (["worst case", "star", "star/worst case"], from_no_adjoint(horizons)),
        "worst-case-paper": (
            ["found", "worst case", "star", "tight", "sharp", "paper"],
            at_the_papers_steps(horizons, options.seed),
        ),
    }
    for name, (columns, rows) in tables.items():
        columns = ["κ", "K", "β", *columns]
        record.table(name, columns, rows, options.record, repeatable=True, libraries=["clarabel"])


if __name__ == "__main__":
    main()
