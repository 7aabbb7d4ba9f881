"""Ready-made bilevel problems on data."""

from bilevel.tasks import features as features, reweighting as reweighting, scores as scores
