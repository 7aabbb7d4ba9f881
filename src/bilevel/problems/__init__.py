"""Small problems whose answers are known in closed form, or can be had to machine precision."""

from bilevel.problems.quadratic import Quadratic as Quadratic, quadratic as quadratic
from bilevel.problems.random_quadratic import (
    RandomQuadratic as RandomQuadratic,
    random_quadratic as random_quadratic,
)
from bilevel.problems.ridge_logistic import (
    Examples as Examples,
    RidgeLogistic as RidgeLogistic,
    ridge_logistic as ridge_logistic,
)
