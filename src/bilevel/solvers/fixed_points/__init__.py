"""Fixed points y = U(x, y) of inner rules, and their adjoint systems.

A step size and the common optax rules state their fixed point. `classification` tries other rules with the
help of `trial` and `schedules`. `system` has the linear system and the checks of solvers.
"""

from bilevel.solvers.fixed_points.system import (
    System as System,
    adjoint_system as adjoint_system,
    check_plain as check_plain,
    check_rests as check_rests,
    check_rests_at_minima as check_rests_at_minima,
    fixed_point as fixed_point,
    residual as residual,
)
