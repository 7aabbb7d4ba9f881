"""Counts of the derivatives that a solver evaluates, from its traced program.

    oracle_calls(bl.aid(problem, ...), state, steps=100)
    # Counts(gradients_f=200, gradients_g=100, hessian_products=100, cross_products=100)

**A derivative counts if the next state or the reported `Info` depends on it**, as often as the program
evaluates it. A product inside a loop counts once per turn, and a product in a branch counts if the branch
runs. Under `vmap` each counts as often as the map is wide. An unused partial gradient is dead code, which the
compiler drops, and does not count. Values of f and g are not counted. Two equal calls count as two, although
the compiler may merge them.

`marked` gives every derivative a name in the traced program, and `interpreter` evaluates the live part of
that program with a counter. There are no callbacks: the count is part of the compiled program. The values
equal the values of the plain problem, mostly bit for bit. The compiler may fuse a rebuilt line search
differently and round differently.
"""

from bilevel.counting.calls import (
    counted_step as counted_step,
    oracle_calls as oracle_calls,
    warm_up_calls as warm_up_calls,
)
from bilevel.counting.interpreter import counting as counting
from bilevel.counting.marked import Counts as Counts, counted as counted
