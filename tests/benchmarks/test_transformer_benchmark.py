"""The transformer benchmark in miniature: what it measures is what it says."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from language_model import TINY, Form, Size, initial, losses, text
from transformer import ByHand, ByLibrary, apart, sample, start

SMALL = replace(TINY, layers=2, width=8, heads=2, vocabulary=16, tokens=4)


def test_the_model_has_the_size_that_is_printed():
    count = lambda size: sum(leaf.size for leaf in jax.tree.leaves(initial(size, Form())))
    assert count(TINY) == TINY.parameters == 39_648
    assert count(SMALL) == SMALL.parameters
    assert Size().parameters == 91_638_528


def test_every_form_of_the_layers_is_one_function():
    """Scanned or unrolled, rematerialized or not."""
    tokens, scanned = text(SMALL).outer, initial(SMALL, Form())
    unrolled = scanned | {"layers": [{k: a[i] for k, a in scanned["layers"].items()} for i in range(2)]}
    plain, *others = (
        jax.jit(losses, static_argnums=(0, 1))(SMALL, form, y, tokens)
        for form, y in ((Form(), scanned), (Form(remat=True), scanned), (Form(scan=False), unrolled))
    )
    assert np.ptp(plain) > 1e-4
    for other in others:
        np.testing.assert_allclose(other, plain, rtol=1e-6)


@pytest.mark.slow
def test_iterates_that_are_not_those_by_hand_are_not_timed():
    form = Form(remat=True)
    by_hand, ours = (
        dict(zip("xyv", map(sample, case("SOBA", SMALL, form).after(2)), strict=True))
        for case in (ByHand, ByLibrary)
    )
    began = dict(zip("xy", map(sample, start(SMALL, form)), strict=False))
    assert apart(ours, by_hand, began, 1e-4) < 1e-4
    for name in "xyv":
        wrong = by_hand[name] + 1e-3 * (by_hand[name] - began.get(name, 0.0))
        with pytest.raises(AssertionError, match="iterates are not those by hand"):
            apart(ours | {name: wrong}, by_hand, began, 1e-4)
