"""Few-shot Omniglot: tasks without repetition, the network's convolution, baselines by hand; on pictures made here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from matplotlib.figure import Figure

import recorded
from bilevel.applications import few_shot_omniglot as app
from bilevel.data import DataError
from bilevel.data.characters import Omniglot


@pytest.fixture
def pictures():
    """characters × 20 × 2 × 2, of which each names its character and its drawer."""
    number = np.arange(30 * 20, dtype=np.float32).reshape(30, 20)
    return jnp.asarray(np.broadcast_to(number[..., None, None], (30, 20, 2, 2)))


@pytest.mark.slow
def test_a_task_has_five_characters_and_no_drawing_twice(pictures):
    drawn = app.episodes(jax.random.key(0), pictures, 40, 3)
    assert drawn.inner[0].shape == (40, 5, 2, 2)
    assert drawn.outer[0].shape == (40, 15, 2, 2)
    for support, query, one, other in zip(*drawn.inner, *drawn.outer, strict=True):
        own = {int(label): int(p[0, 0]) for p, label in zip(support, query, strict=True)}
        characters = {label: number // 20 for label, number in own.items()}
        assert sorted(own) == list(range(5)) == sorted(set(own))
        assert len(set(characters.values())) == 5
        seen = [int(p[0, 0]) for p in one]
        assert len({*seen, *own.values()}) == 20  # 5 + 15, all different
        assert [characters[int(label)] for label in other] == [number // 20 for number in seen]
    assert len(np.unique(drawn.inner[0] // 20)) == 30


@pytest.mark.slow
def test_reptile_gets_the_queries_and_the_classifier_its_own_labels(pictures):
    key = jax.random.key(1)
    _, plain = app.Episodes(key, pictures).next(jnp.uint32(4))
    _, both = app.AllShots(key, pictures).next(jnp.uint32(4))
    np.testing.assert_array_equal(both.inner[1], np.concatenate([plain.inner[1], plain.outer[1]], axis=1))
    _, some = app.Drawings(key, pictures).next(jnp.uint32(4))
    assert some.inner[0].shape[:2] == (1, app.TASKS * app.WAYS * (1 + app.QUERIES))
    np.testing.assert_array_equal(some.inner[0][..., 0, 0] // 20, some.inner[1])


@pytest.mark.slow
@pytest.mark.parametrize("side", [20, 5])
def test_the_convolution_is_jax_s(side):
    rng = np.random.default_rng(0)
    h, w = rng.normal(size=(2, side, side, 3)), rng.normal(size=(27, 4))
    ours = app.convolved(jnp.asarray(h), jnp.asarray(w), jnp.zeros((1, 1, 1, 4)))
    kernel = jnp.asarray(w.reshape(3, 3, 3, 4))
    theirs = lax.conv_general_dilated(
        jnp.asarray(h), kernel, (2, 2), [(1, 1)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(ours, theirs[:, : ours.shape[1], : ours.shape[2]], atol=1e-12)
    assert ours.shape == theirs.shape


@pytest.mark.slow
def test_nearest_neighbors_by_hand():
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.random((12, 20, 20, 20)).astype(np.float32))
    y, new = app.initial(rng), app.episodes(jax.random.key(0), images, 3, 2)
    pixels, angles = app.by_pixels(new), app.by_features(y, new)
    for i in range(3):
        flat = lambda p: np.asarray(p).reshape(len(p), -1).astype(float)
        vectors = lambda p: np.asarray(app.features(y, p)).astype(float)
        for found, of in ((pixels, flat), (angles, vectors)):
            support, query, right = of(new.inner[0][i]), of(new.outer[0][i]), []
            for q, label in zip(query, new.outer[1][i], strict=True):
                if of is flat:
                    closest = min(range(5), key=lambda k: np.linalg.norm(q - support[k]))
                else:
                    closest = max(range(5), key=lambda k: q @ support[k] / np.linalg.norm(support[k]))
                right.append(int(new.inner[1][i][closest]) == int(label))
            np.testing.assert_allclose(found[i], np.mean(right), rtol=1e-6)


def test_a_turned_character_is_another():
    images = np.random.default_rng(0).random((3, 2, 4, 4)).astype(np.float32)
    turned = np.asarray(app.turned(Omniglot(images, ("a", "b", "c"), "")))
    assert turned.shape == (12, 2, 4, 4)
    np.testing.assert_array_equal(turned[4, 1], images[1, 1].T[::-1])  # by 90° against the clock


@pytest.mark.slow
def test_a_short_trial_and_its_picture(monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(app, "SPLIT", (20, 8, 12))
    monkeypatch.setattr(app, "FILTERS", 4)
    images = rng.random((40, 20, app.SIZE, app.SIZE)).astype(np.float32)
    made = Omniglot(images, tuple(str(i) for i in range(40)), "made here")
    monkeypatch.setattr(app, "omniglot", lambda size: made)
    every = list(app.learners(1))
    assert [name for name, *_ in every] == ["MAML", "first-order MAML", "Reptile", "implicit MAML"]
    some = [each for each in every if each[0] == "MAML"]  # each takes seconds to compile
    monkeypatch.setattr(app, "learners", lambda steps: iter(some))
    with jax.numpy_dtype_promotion("standard"):
        outcome = app.APPLICATION.trial(0, 1, False)
    others = dict.fromkeys((name for name, *_ in every), outcome.scores["MAML"])
    recorded.check("few-shot-omniglot", outcome.scores | others)
    for row in outcome.scores.values():
        assert 0 < row["accuracy"] < 0.6  # of five, on noise
        assert 0 < row["95 % ±"] < 0.3
    figure = Figure()
    app.APPLICATION.draw(figure, [outcome, outcome])
    assert len(figure.axes) == 2


def test_without_the_data_one_line_says_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.delenv("BILEVEL_DATA", raising=False)
    monkeypatch.setenv("BILEVEL_CACHE", str(tmp_path))
    for call in (lambda: app.APPLICATION.trial(0, 2, False), lambda: app.APPLICATION.task(0)):
        with pytest.raises(DataError, match=r"download=True") as caught:
            call()
        assert "\n" not in str(caught.value)
