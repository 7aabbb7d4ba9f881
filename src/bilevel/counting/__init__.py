"""How often a solver asks for each derivative, read off the program that is compiled.

    oracle_calls(bl.aid(problem, ...), state, steps=100)
    # Counts(gradients_f=200, gradients_g=100, hessian_products=100, cross_products=100)

**A derivative counts if the step cannot do without it**: if the next state or the reported `Info` depends on it, and
as often as the program that runs evaluates it. A product inside a loop counts once per turn that the loop takes, in
a branch when that branch is taken, under `vmap` as often as the map is wide. A partial gradient that nobody uses is
dead code, which the compiler drops, and does not count. Values of f and g are not counted. Two equal calls count
as two, although the compiler may find them out.

It works on the traced program: `marked` gives every derivative a name in it, `interpreter` evaluates what is alive of
it with a counter alongside. No callbacks: the count is part of the compiled program. The values are the plain
problem's, mostly bit for bit; the compiler may fuse a line search that was built again differently, and round so.
"""

from bilevel.counting.calls import (
    counted_step as counted_step,
    oracle_calls as oracle_calls,
    warm_up_calls as warm_up_calls,
)
from bilevel.counting.interpreter import counting as counting
from bilevel.counting.marked import counted as counted
from bilevel.counting.tally import Counts as Counts
