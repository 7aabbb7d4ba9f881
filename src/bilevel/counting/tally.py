"""The four numbers."""

from typing import Any, NamedTuple


class Counts(NamedTuple):
    """How many partial gradients and products were evaluated; whole numbers, or integer arrays of one shape."""

    gradients_f: Any = 0  # ∇_x f and ∇_y f, each on its own
    gradients_g: Any = 0  # ∇_x g and ∇_y g, likewise
    hessian_products: Any = 0  # ∇²_yy g · v, or Gauss–Newton in its place (a few methods: ∇²_yy f · v)
    cross_products: Any = 0  # ∇²_xy g · v and its transpose, likewise

    @property
    def Gc(self) -> Any:
        """The paper's gradient complexity; single-loop AID has Gc = 3K after K steps."""
        return self.gradients_f + self.gradients_g

    @property
    def Mv(self) -> Any:
        """The paper's matrix-vector complexity; single-loop AID has Mv = 2K after K steps."""
        return self.hessian_products + self.cross_products

    def __add__(self, other: "Counts") -> "Counts":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(*(a - b for a, b in zip(self, other, strict=True)))
