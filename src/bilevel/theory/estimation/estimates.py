"""Estimated constants, and certificates that hold if the constants do.

Estimates have a separate type, so that they cannot pass for declared constants.
"""

from collections.abc import Container
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from bilevel.theory.certificates.analyses import METHODS
from bilevel.theory.certificates.certificate import Certificate, StepSizes
from bilevel.theory.constants import Blocks, Constants

SINGLE = ("mu", "L", "M", "rho")
OFFERED = ("paper", "star")  # the analyses in advice: the paper's and the sharpest
BLOCKS = tuple(field.name for field in fields(Blocks))
SYMBOLS = {"mu": "μ", "rho": "ρ"} | {name: name.replace("rho", "ρ") for name in BLOCKS if name != "mu"}


@dataclass(frozen=True)
class Assumed(Constants):
    """Constants; the ones listed in `estimated` are estimates that are assumed to hold."""

    estimated: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        Constants(self.mu, self.L, self.M, self.rho)  # raises if they are impossible


@dataclass(frozen=True)
class AssumedBlocks(Blocks):
    """Block constants; the ones listed in `estimated` are estimates that are assumed to hold."""

    estimated: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        Blocks(*(getattr(self, name) for name in BLOCKS))


@dataclass(frozen=True)
class Estimated:
    """One-sided estimates of the constants from the observed points: a new point can only worsen them.

    No certificate accepts them: `assume()` and `assume_blocks()` return constants that you assume to hold.
    """

    mu_at_most: float  # smallest curvature of g in y found; negative if g is not convex in y
    mu_residual: float  # the distance of the nearest eigenvalue of ∇²_yy g; a smaller one may exist
    L_at_least: float  # largest slope of ∇_y g and of ∇f, in (x, y) jointly
    M_at_least: float  # largest ‖∇f‖
    rho_at_least: float  # largest slope of ∇²_yy g and ∇²_xy g, in (x, y) jointly
    L_yy_at_least: float  # largest ‖∇²_yy g‖, which bounds the inner step size
    L_xy_at_least: float  # largest ‖∇²_xy g‖
    f_xx_at_least: float  # largest blocks of ∇²f
    f_xy_at_least: float
    f_yy_at_least: float
    M_y_at_least: float  # largest ‖∇_y f‖; only at points with y = y*(x), if there are any
    M_aid_at_least: float  # largest ‖∇_y f‖ at any point, which is the M of the paper's lemmas on AID
    rho_xxy_at_least: float  # largest blocks of the third derivative of g
    rho_xyy_at_least: float
    rho_yyy_at_least: float
    points: int
    iterations: int

    def assume(self, **declared: float) -> Assumed:
        """Return these estimates as the paper's constants; `assume(M=1.0)` declares one of them."""
        return Assumed(**self._values(SINGLE, declared), estimated=frozenset(SINGLE) - set(declared))

    def assume_blocks(self, **declared: float) -> AssumedBlocks:
        """Return these estimates as blocks; `assume_blocks(mu=0.1, M_y=1.0)` declares two of them."""
        return AssumedBlocks(**self._values(BLOCKS, declared), estimated=frozenset(BLOCKS) - set(declared))

    def _values(self, names: tuple[str, ...], declared: dict[str, float]) -> dict[str, float]:
        if unknown := set(declared) - set(names):
            *most, last = names
            raise TypeError(
                f"{sorted(unknown)[0]!r} is not one of the constants {', '.join(most)} and {last}"
            )
        if "mu" not in declared and self.mu_at_most <= 0:
            raise ValueError(
                f"g has curvature {self.mu_at_most:.3g} in y at an observed point, so it is not strongly convex and no "
                "certificate applies: add a ridge term to the inner objective, or use points nearer its minimum"
            )
        return {name: getattr(self, _field(name)) for name in names} | declared

    def __getattr__(self, name: str) -> Any:
        if name in (*SINGLE, *BLOCKS, "kappa", "L_Phi", "L_Phi_blockwise", "blocks"):
            read = f".{_field(name)}" if name in (*SINGLE, *BLOCKS) else ".mu_at_most and .L_at_least"
            raise AttributeError(  # a TypeError would make hasattr fail
                f"{name} is not known, only estimated from {self.points} points: read {read}, or call "
                ".assume() to use the estimates as constants"
            )
        raise AttributeError(f"Estimated has no attribute {name!r}")

    def __str__(self) -> str:
        bounds = lambda names: ", ".join(
            f"{SYMBOLS.get(n, n)} ≥ {getattr(self, _field(n)):.4g}" for n in names
        )
        within = f" (± {self.mu_residual:.1g})" if self.mu_residual > 1e-3 * abs(self.mu_at_most) else ""
        return (
            f"estimated at {self.points} point{'s' if self.points > 1 else ''}, {self.iterations} iterations each: "
            f"μ ≤ {self.mu_at_most:.4g}{within}, {bounds(SINGLE[1:])}; block by block {bounds(BLOCKS[1:])}"
        )


def _field(name: str) -> str:
    return "mu_at_most" if name == "mu" else f"{name}_at_least"


class StartErrors(NamedTuple):
    """Errors of a start, as certificates describe it."""

    gap: float  # Φ(x0) − infimum
    y_error: float  # ‖y0 − y*(x0)‖
    v_error: float | None  # ‖v*(x0)‖, because v starts at zero; None if its system was not solved


class Sampled(NamedTuple):
    """Step sizes, and a bound on the mean of ‖∇Φ‖² over `steps` steps, if the constants hold."""

    sizes: StepSizes
    bound: float
    steps: int
    certificate: Certificate  # its constants are the sampled ones


def sampled_certificates(
    estimated: Estimated, start: StartErrors, steps: int, methods: Container[str] = METHODS
) -> dict[str, Sampled]:
    """Return the certificates by name, "AID (star)" and so on, for this start and this number of steps."""
    found = {}
    for certificate in _offered(estimated):
        sizes = certificate.step_sizes(steps, *start)
        beta = min(float(sizes.outer), float(np.finfo(float).max))
        bound = float(certificate.bound(steps, *start, beta=beta))
        if certificate.method in methods and np.isfinite(bound):  # the paper's ITD needs a y0 near y*(x0)
            name = f"{certificate.method} ({certificate.analysis})"
            found[name] = Sampled(sizes._replace(outer=beta), bound, steps, certificate)
    return found


def _offered(estimated: Estimated) -> list[Certificate]:
    """Return the offered certificates for these constants, block by block where they can use it."""
    found = []
    for method, analyses in METHODS.items():
        for name in (name for name in analyses if name in OFFERED):
            if name == "star":
                constants = estimated.assume_blocks()
            elif method == "AID":  # its lemmas need M only as a bound on ∇_y f
                constants = estimated.assume(M=estimated.M_aid_at_least)
            else:
                constants = estimated.assume()
            found.append(analyses[name](constants))
    return found


def largest_beta(estimated: Estimated, methods: Container[str]) -> float:
    """Return the largest β of the certificates for these methods; zero if all of them allow any β."""
    betas = [float(one.beta_max) for one in _offered(estimated) if one.method in methods]
    return max((beta for beta in betas if np.isfinite(beta)), default=0.0)
