"""Properties of a solver that the loop and the diagnosis need. Each class declares them as data."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Traits:
    """Properties of a method. The defaults fit a method with an adjoint variable."""

    supports_prox: bool = False  # the inner problem may have a proximal map
    differentiates_rule: bool = False  # the hypergradient goes through updates of the inner rule
    uses_hessian: bool = False  # it takes second derivatives of g, although it keeps no v
    first_order: bool = False  # it takes no second derivatives at all
    unrolled: bool = False  # every differentiated inner step reduces the bias at a known rate
    truncated_series: bool = False  # more factors (`products=`) reduce the bias
    penalized: bool = False  # y follows the minimum of f + λg
    same_rows: bool = False  # a row is the same task at both levels, so both levels draw the same rows
    outer_at: Literal["start", "end"] = "end"  # where on the inner path f is evaluated
    outer_draw: int = -1  # the draw on which f is evaluated
    outer_last_only: bool = False  # only the last draw needs its outer part
    extra_draws: int = 0  # with `batches="independent"`: draws in addition to inner steps and products
    # The fixed points of the inner rule that the method can use: any; a differentiable one; ∇_y g = 0 where y may move;
    # ∇_y g = 0.
    inner_rule: Literal["any", "differentiable", "minimum", "plain"] = "any"
