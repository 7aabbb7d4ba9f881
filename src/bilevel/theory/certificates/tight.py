"""Exact gain on the paper's two errors, with the contraction kept on every term.

The paper's proofs discard two facts that need no new assumption:

* The step that contracts the error also contracts the drift of its target. So every perturbation carries the
  factor 1 − αμ (or 1 − ημ), which vanishes as κ → 1.
* ITD's Jacobian error αρM‖y_k⁰ − y*_k‖ is itself part of the recursion. Tracking it replaces Lemma 5.12: no
  R_y, no bound on ∇_x f. The inherent error is M²(κ − 1)² for every ρ, which is exactly the lower bound.

AID still loses a factor κ, by the choice of the errors and in the descent lemma: see `star`.
"""

from bilevel.theory.certificates import paper
from bilevel.theory.certificates.gain import ClosedLoop, SystemCertificate
from bilevel.theory.certificates.sharp import of_aid, with_gain
from bilevel.theory.constants import Constants


def aid(constants: Constants) -> SystemCertificate:
    """Return the certificate of AID with the contraction kept on every term (notation of `sharp.aid`):

    a_k ≤ (1 − αμ)(a_{k−1} + (L/μ)d_k),  b_k ≤ (1 − ημ)(b_{k−1} + C₀αL·a_{k−1} + C₀(αL + 1)d_k).
    """
    p, L = paper.aid(constants), constants.L
    inner, adjoint = 1 - p.alpha * constants.mu, 1 - p.eta * constants.mu
    system = ClosedLoop(
        r0=inner,
        r1=adjoint,
        p=adjoint * L * p.C0 * p.alpha * L / p.C3,
        q0=inner * p.C3 * constants.kappa,
        q1=adjoint * L * p.C0 * (p.alpha * L + 1),
        beta_cap=1 / constants.L_Phi_blockwise,
    )
    return of_aid("tight", constants, system)


def itd(constants: Constants) -> SystemCertificate:
    """Return the certificate of ITD in the warm-start error s_k = ‖y_k⁰ − y*_k‖, without a radius:

    s_k ≤ (1 − αμ)s_{k−1} + (L/μ)d_k  and  e_k ≤ ((1 − αμ)(L + αL²) + αρM)s_k + M(1 − αμ)L/μ.
    """
    constants = Constants.of(constants)
    L, M = constants.L, constants.M
    alpha = 1 / L
    inner = 1 - alpha * constants.mu
    weight = inner * (L + alpha * L**2) + alpha * constants.rho * M
    miss, limits = M * inner * constants.kappa, {"smoothness": 1 / constants.L_Phi_blockwise}
    system = ClosedLoop(r0=inner, q0=weight * constants.kappa, C5=miss, beta_cap=limits["smoothness"])
    start = lambda y_error, v_error: (y_error, 0.0)
    return with_gain("tight", "ITD", constants, alpha, None, system, (weight, 0.0), start, limits)
