"""Constants that were estimated, kept apart from declared ones by type."""

from dataclasses import dataclass, fields
from typing import Any

from bilevel.theory.blocks import Blocks
from bilevel.theory.constants import Constants

SINGLE = ("mu", "L", "M", "rho")
BLOCKS = tuple(field.name for field in fields(Blocks))
SYMBOLS = {"mu": "μ", "rho": "ρ"} | {name: name.replace("rho", "ρ") for name in BLOCKS if name != "mu"}


@dataclass(frozen=True)
class Assumed(Constants):
    """Constants of which those named in `estimated` were estimated and are assumed to hold."""

    estimated: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        Constants(self.mu, self.L, self.M, self.rho)  # refuses what no constants can be


@dataclass(frozen=True)
class AssumedBlocks(Blocks):
    """Block constants of which those named in `estimated` were estimated and are assumed to hold."""

    estimated: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        Blocks(*(getattr(self, name) for name in BLOCKS))


@dataclass(frozen=True)
class Estimated:
    """What points seen so far say about the constants. Each is one-sided: a new point can only worsen it.

    No certificate takes these as they are. `assume()` and `assume_blocks()` turn them into constants on the reader's
    own account.
    """

    mu_at_most: float  # smallest curvature of g in y that was found; negative: g is not convex in y
    mu_residual: float  # an eigenvalue of ∇²_yy g lies this close to it; a smaller one is not excluded
    L_at_least: float  # largest slope of ∇_y g and of ∇f, in (x, y) jointly
    M_at_least: float  # largest ‖∇f‖
    rho_at_least: float  # largest slope of ∇²_yy g and ∇²_xy g, in (x, y) jointly
    L_yy_at_least: float  # largest ‖∇²_yy g‖: what bounds the inner step size
    L_xy_at_least: float  # largest ‖∇²_xy g‖
    f_xx_at_least: float  # largest blocks of ∇²f
    f_xy_at_least: float
    f_yy_at_least: float
    M_y_at_least: float  # largest ‖∇_y f‖; if points are known to be at y = y*(x), at those alone
    M_aid_at_least: float  # largest ‖∇_y f‖ at any point: what the paper's lemmas on AID need of M
    rho_xxy_at_least: float  # largest blocks of the third derivative of g
    rho_xyy_at_least: float
    rho_yyy_at_least: float
    points: int
    iterations: int

    def assume(self, **declared: float) -> Assumed:
        """These estimates as the paper's constants, except those declared here, e.g. `assume(M=1.0)`."""
        return Assumed(**self._values(SINGLE, declared), estimated=frozenset(SINGLE) - set(declared))

    def assume_blocks(self, **declared: float) -> AssumedBlocks:
        """These estimates as block constants, except those declared here, e.g. `assume_blocks(mu=0.1, M_y=1.0)`."""
        return AssumedBlocks(**self._values(BLOCKS, declared), estimated=frozenset(BLOCKS) - set(declared))

    def _values(self, names: tuple[str, ...], declared: dict[str, float]) -> dict[str, float]:
        if unknown := set(declared) - set(names):
            *most, last = names
            raise TypeError(
                f"{sorted(unknown)[0]!r} is not one of the constants {', '.join(most)} and {last}"
            )
        if "mu" not in declared and self.mu_at_most <= 0:
            raise ValueError(
                f"g has curvature {self.mu_at_most:.3g} in y at a point seen, so it is not strongly convex and no "
                "certificate applies: add a ridge term to the inner objective, or look at points nearer its minimum"
            )
        return {name: getattr(self, _field(name)) for name in names} | declared

    def __getattr__(self, name: str) -> Any:
        if name in (*SINGLE, *BLOCKS, "kappa", "L_Phi", "L_Phi_blockwise", "blocks"):
            read = f".{_field(name)}" if name in (*SINGLE, *BLOCKS) else ".mu_at_most and .L_at_least"
            raise AttributeError(  # a TypeError would make hasattr fail
                f"{name} is not known, only estimated from {self.points} points: read {read}, or call "
                ".assume() to go on as if the estimates were the constants"
            )
        raise AttributeError(f"Estimated has no attribute {name!r}")

    def __str__(self) -> str:
        told = lambda names: ", ".join(f"{SYMBOLS.get(n, n)} ≥ {getattr(self, _field(n)):.4g}" for n in names)
        within = f" (± {self.mu_residual:.1g})" if self.mu_residual > 1e-3 * abs(self.mu_at_most) else ""
        return (
            f"estimated at {self.points} point{'s' if self.points > 1 else ''}, {self.iterations} iterations each: "
            f"μ ≤ {self.mu_at_most:.4g}{within}, {told(SINGLE[1:])}; block by block {told(BLOCKS[1:])}"
        )


def _field(name: str) -> str:
    return "mu_at_most" if name == "mu" else f"{name}_at_least"
