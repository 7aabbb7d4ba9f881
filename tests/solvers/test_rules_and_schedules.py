"""Every rule keeps its kind under every schedule, and what a refusal names is accepted under that schedule."""

from contextlib import nullcontext
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.solvers.fixed_points import fixed_point
from bilevel.solvers.fixed_points.classification import classify
from bilevel.solvers.rules import as_rule

PROBLEM = bl.Problem(inner=lambda x, y: jnp.sum(x), outer=lambda x, y: jnp.sum(y))
Y = {"w": jnp.ones((2, 3), "float32")}
warm_up_cosine = optax.warmup_cosine_decay_schedule
part = {"init_value": 0.0, "peak_value": 0.01, "warmup_steps": 10, "decay_steps": 100, "end_value": 0.0}
SCHEDULES = {
    "warm-up and cosine": warm_up_cosine(0.0, 0.01, 40, 400),
    "linear to zero": optax.linear_schedule(0.01, 0.0, 1000),
    "restarts": optax.sgdr_schedule([part] * 3),
    "piecewise": optax.piecewise_constant_schedule(0.01, {100: 0.1, 200: 0.0}),
    "one window": lambda k: jnp.where((k > 500) & (k < 900), 0.01, 0.0),
    "one cycle": optax.cosine_onecycle_schedule(400, 0.01),
    "inverse root": lambda k: 0.01 * jnp.minimum(k / 100, jnp.sqrt(100 / jnp.maximum(k, 1))),
    "exponential": optax.exponential_decay(0.01, 10, 0.9),
    "short": warm_up_cosine(0.0, 0.01, 2, 8),
    "long": warm_up_cosine(0.0, 0.01, 2000, 100_000),
    "constant": 0.01,
}
stateless: Any = optax.stateless
QUICK = "warm-up and cosine", "linear to zero"
family = pytest.mark.parametrize(
    "schedule", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SCHEDULES]
)
decay, clip = optax.add_decayed_weights(0.01), optax.clip_by_global_norm(1.0)
RESTS = {  # rule and the decay of g that it stands for
    "adam": (optax.adam, 0.0),
    "decay, adam": (lambda s: optax.chain(decay, optax.adam(s)), 0.01),
    "clip, decay, adam": (lambda s: optax.chain(clip, decay, optax.adam(s)), 0.01),
    "decay, momentum": (lambda s: optax.chain(decay, optax.sgd(s, momentum=0.9)), 0.01),
}
HELD = {
    "adamw": lambda s: optax.adamw(s, weight_decay=0.1),
    "clip, adamw": lambda s: optax.chain(clip, optax.adamw(s, weight_decay=0.1)),
    "injected adamw": lambda s: optax.inject_hyperparams(optax.adamw)(s, weight_decay=0.1),
}
REFUSED = {
    "lion": lambda s: optax.lion(s, weight_decay=0.1),
    "lamb": lambda s: optax.lamb(s, weight_decay=0.1),
}


def found(rule):
    return fixed_point(PROBLEM, as_rule(rule, "inner"), Y)


@family
def test_a_rule_rests_at_the_same_point_under_every_schedule(schedule):
    for name, (make, expected) in RESTS.items():
        seen = found(make(SCHEDULES[schedule]))
        assert seen.plain == (expected == 0), name
        assert seen.decay is not None
        np.testing.assert_allclose(seen.decay["w"], expected, rtol=1e-4, err_msg=name)
        assert np.all(seen.active["w"]), name


@pytest.mark.slow
@family
def test_what_the_refusal_of_adamw_names_is_accepted(schedule):
    for name, make in HELD.items():
        with pytest.raises(ValueError, match=r"bl\.fixed_preconditioner\(optax\.adamw\(\.\.\.\)\)"):
            found(make(SCHEDULES[schedule]))
        seen = found(bl.fixed_preconditioner(make(SCHEDULES[schedule])))
        assert seen.held is not None, name
        assert np.all(seen.active["w"]), name


@pytest.mark.slow
@pytest.mark.parametrize("schedule", QUICK)
def test_a_refusal_names_only_what_would_be_accepted(schedule):
    for make in REFUSED.values():
        with pytest.raises(ValueError, match="put the decay into g") as refusal:
            found(make(SCHEDULES[schedule]))
        assert "fixed_preconditioner" not in str(refusal.value)
        with pytest.raises(ValueError, match=r"bl\.fixed_preconditioner was given a rule that is not"):
            found(bl.fixed_preconditioner(make(SCHEDULES[schedule])))


def test_parts_with_schedules_of_different_lengths_all_move():
    y = {"w": jnp.ones(2), "b": jnp.zeros(2)}
    rules: Any = {
        "w": optax.sgd(optax.cosine_decay_schedule(0.1, 300)),
        "b": optax.sgd(SCHEDULES["warm-up and cosine"]),
    }
    rule = optax.multi_transform(rules, {"w": "w", "b": "b"})
    assert fixed_point(PROBLEM, as_rule(rule, "inner"), y).plain  # though only w moves in the first step


class TestStandIns:
    """A rule is tried on a few entries per array, where that cannot matter."""

    def of(self, rule, y):
        return fixed_point(PROBLEM, as_rule(rule, "inner"), y)

    def test_masks_by_position_and_by_size_are_seen(self):
        y = {"w": jnp.ones((40, 50)), "b": jnp.zeros(50)}
        keep = jnp.arange(50) < 30
        by_position = optax.chain(optax.sgd(0.1), stateless(lambda u, _: {**u, "b": u["b"] * keep}))
        np.testing.assert_array_equal(self.of(by_position, y).active["b"], keep)
        first = stateless(lambda u, _: {**u, "b": u["b"].at[:5].set(0.0)})
        np.testing.assert_array_equal(
            self.of(optax.chain(optax.sgd(0.1), first), y).active["b"], jnp.arange(50) >= 5
        )
        large = lambda tree: {name: leaf.size > 100 for name, leaf in tree.items()}
        by_size = optax.chain(optax.add_decayed_weights(0.1, mask=large), optax.sgd(0.1))
        seen = self.of(by_size, y)
        assert seen.decay is not None
        np.testing.assert_allclose([seen.decay["w"], seen.decay["b"]], [0.1, 0.0], rtol=1e-4)

    def test_labels_by_path(self):
        y = {"w": jnp.ones((40, 50)), "b": jnp.zeros(50)}
        rules: Any = {
            "decay": optax.chain(decay, optax.adam(0.1)),
            "not": optax.adam(0.1),
            "keep": optax.set_to_zero(),
        }
        seen = self.of(optax.multi_transform(rules, {"w": "decay", "b": "not"}), y)
        assert seen.decay is not None
        np.testing.assert_allclose([seen.decay["w"], seen.decay["b"]], [0.01, 0.0], rtol=1e-4)
        assert self.of(optax.multi_transform(rules, {"w": "not", "b": "keep"}), y).active == {
            "w": True,
            "b": False,
        }

    @pytest.mark.slow
    def test_what_tells_entries_apart_is_judged_on_the_true_shapes(self):
        y = {"w": jnp.ones((40, 50))}
        with pytest.raises(ValueError, match="a part of the gradient only"):
            self.of(optax.chain(optax.centralize(), optax.sgd(0.1)), y)
        with pytest.raises(ValueError, match="cannot be told from a trial"):
            self.of(
                optax.chain(
                    stateless(lambda u, y: {"w": u["w"] + 0.3 * jnp.roll(y["w"], 1)}), optax.sgd(0.1)
                ),
                y,
            )


REFUSED_BY_STRUCTURE = {
    "AdamW": lambda: optax.adamw(1e-3),
    "AdamW with a schedule": lambda: optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)),
    "clipped AdamW": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "RMSProp, then decay": lambda: optax.chain(
        optax.scale_by_rms(), optax.add_decayed_weights(0.1), optax.scale(-0.1)
    ),
}
NOT_REFUSED_BY_STRUCTURE = {
    "decay first": lambda: optax.chain(optax.add_decayed_weights(0.1), optax.adam(1e-3)),
    "no decay": lambda: optax.adamw(1e-3, weight_decay=0.0),
    "SGD with decay": lambda: optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
}


@pytest.mark.parametrize("name", REFUSED_BY_STRUCTURE | NOT_REFUSED_BY_STRUCTURE)
def test_decay_after_rescaling_is_seen_in_the_chain_and_in_a_trial(name, monkeypatch):
    rule = as_rule((REFUSED_BY_STRUCTURE | NOT_REFUSED_BY_STRUCTURE)[name](), "inner")
    assert rule.decays_after_rescaling() is (name in REFUSED_BY_STRUCTURE)
    monkeypatch.setattr(type(rule), "decays_after_rescaling", lambda self: False)
    problem = bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y**2))
    refusal = pytest.raises(ValueError, match="depends on y itself")
    with refusal if name in REFUSED_BY_STRUCTURE else nullcontext():  # the trial agrees
        classify(problem, rule, jnp.ones(3))
