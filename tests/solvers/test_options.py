"""The options of solvers: keywords, deprecated names, and what the code of a step looks like."""

import ast
import inspect
import textwrap
from typing import get_type_hints

import pytest

import bilevel as bl
from bilevel.solvers.messages import SENTENCES, Finding, sentence, solvers_with

Q = bl.problems.quadratic(kappa=2.0)
RENAMED = [
    ("acc_f2ba", "momentum", "lookahead", {"inner": 0.1, "outer": 0.1, "penalty": 5.0, "radius": 1.0}),
    ("bome", "eta", "rate", {"inner": 0.1, "outer": 0.1}),
    ("darts", "xi", "virtual_step", {"inner": 0.1, "outer": 0.1}),
    ("darts", "epsilon", "displacement", {"inner": 0.1, "outer": 0.1, "virtual_step": 0.1}),
    ("imaml", "strength", "proximal_weight", {"inner": 0.1, "outer": 0.1}),
    ("meha", "proximal", "proximal_step", {"inner": 0.1, "outer": 0.1, "penalty": 5.0}),
    ("pzobo", "mu", "displacement", {"inner": 0.1, "outer": 0.1}),
    ("sama", "epsilon", "displacement", {"inner": 0.1, "outer": 0.1}),
    ("tuning_free", "accuracy", "tol", {}),
]


@pytest.mark.parametrize("solver", [bl.aid, bl.soba])
def test_a_step_of_aid_and_of_soba_reads_like_pseudocode(solver):
    made = get_type_hints(solver)["return"]
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(made.step)))
    (function,) = ast.parse(source).body
    lines = source.splitlines()[function.body[0].lineno - 1 :]
    assert len([line for line in lines if line.strip()]) <= 12


def test_step_sizes_by_position_still_work_with_a_warning_that_shows_the_keywords():
    with pytest.warns(
        DeprecationWarning, match=r"bl\.solvers\.aid\(problem, inner=0\.1, adjoint=0\.2, outer=0\.3\)"
    ):
        by_position = bl.aid(Q.problem, 0.1, 0.2, 0.3, inner_steps=2)
    assert by_position == bl.aid(Q.problem, inner=0.1, adjoint=0.2, outer=0.3, inner_steps=2)
    with pytest.warns(DeprecationWarning, match=r"bl\.solvers\.itd\(problem, inner=0\.1\)"):
        bl.itd(Q.problem, 0.1, outer=0.3)
    with pytest.raises(TypeError, match="positional"):
        bl.itd(Q.problem, 0.1, 0.2, 3)
    with pytest.raises(TypeError, match="outer"):
        bl.itd(Q.problem, inner=0.1)


@pytest.mark.parametrize(("name", "old", "new", "others"), RENAMED)
def test_old_option_names_still_work_with_a_warning(name, old, new, others):
    make = getattr(bl.solvers, name)
    with pytest.warns(DeprecationWarning, match=f"{name}: the option {old} is now {new}"):
        before = make(Q.problem, **others, **{old: 0.5})
    assert before == make(Q.problem, **others, **{new: 0.5})


def test_hoag_s_tolerance_is_now_tol():
    schedule = lambda k: 0.1 / (k + 1)
    with pytest.warns(DeprecationWarning, match="tolerance is now tol"):
        before = bl.hoag(Q.problem, inner=0.1, outer=0.1, tolerance=schedule)
    assert before == bl.hoag(Q.problem, inner=0.1, outer=0.1, tol=schedule)


def test_every_finding_has_a_sentence_and_users_may_pass_their_own():
    numbers = {"share": 0.75, "steps": 8, "own_damping": True}
    assert "in 75% of the last 8 steps" in sentence(Finding("adjoint_indefinite", numbers))
    assert sentence("y left the domain of g.") == "y left the domain of g."
    assert sentence(None) == ""
    assert all(code.isidentifier() for code in SENTENCES)


def test_solvers_are_listed_by_their_traits():
    listed = solvers_with("supports_prox").split(", ")
    assert listed == [
        f"bl.solvers.{name}" for name in ("aid", "forward_itd", "hoag", "itd", "rtho", "soba", "stocbio")
    ]
    prox = bl.Problem(inner=Q.problem.inner, outer=Q.problem.outer, prox=lambda x, y, s: y)
    with pytest.raises(ValueError, match=r"take one of bl\.solvers\.aid"):
        bl.f2sa(prox, inner=0.1, outer=0.1, penalty=5.0)
