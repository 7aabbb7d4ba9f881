"""Problems with a start, data and a yardstick: small ones with closed forms, and the applications."""

from bilevel.problems import features as features, reweighting as reweighting, scores as scores
from bilevel.problems.features import feature_learning as feature_learning
from bilevel.problems.instance import Instance as Instance
from bilevel.problems.random_quadratics import (
    RandomQuadratic as RandomQuadratic,
    random_quadratic as random_quadratic,
)
from bilevel.problems.reweighting import data_reweighting as data_reweighting
from bilevel.problems.ridge import RidgeLogistic as RidgeLogistic, ridge_logistic as ridge_logistic
from bilevel.problems.two_dimensional import Quadratic as Quadratic, quadratic as quadratic
