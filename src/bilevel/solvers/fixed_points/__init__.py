"""Where an inner rule comes to rest, y = U(x, y), and the adjoint system of that point.

`trial` tries a rule out, `behavior` tells from that what kind it is, `refusals` has those that a method cannot follow,
and `system` writes down the linear system of the others.
"""

from bilevel.solvers.fixed_points.refusals import (
    check_plain as check_plain,
    check_rests as check_rests,
    check_rests_at_minima as check_rests_at_minima,
)
from bilevel.solvers.fixed_points.system import (
    System as System,
    adjoint_system as adjoint_system,
    residual as residual,
)
