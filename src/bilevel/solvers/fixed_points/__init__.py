"""Where an inner rule comes to rest, y = U(x, y), and the adjoint system of that point.

`behaviour` finds out what kind of rule it is, `system` writes down the linear system that belongs to it.
"""

from bilevel.solvers.fixed_points.behaviour import (
    check_plain as check_plain,
    check_rests as check_rests,
    check_rests_at_minima as check_rests_at_minima,
)
from bilevel.solvers.fixed_points.system import (
    System as System,
    adjoint_system as adjoint_system,
    residual as residual,
)
