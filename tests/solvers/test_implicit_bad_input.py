"""Each refusal names the offending value and what to do instead, before anything runs."""

import jaxtyping
import pytest

import bilevel as bl
from bilevel import adjoints, aid, hoag, soba, stocbio
from bilevel.solvers import darts, darts_first_order, sama

P = bl.problems.quadratic().problem


@pytest.fixture(autouse=True)
def as_users_run_it():
    """Without the run-time annotation checks, which would answer first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: aid(P, inner=0.1, adjoint=0.1, outer=0.1, inner_steps=0),
            "inner_steps must be a whole number.*not 0",
        ),
        (
            lambda: aid(P, inner=0.1, adjoint=0.1, outer=0.1, inner_steps=2.5),
            "inner_steps must be a whole number.*not 2.5",
        ),
        (
            lambda: aid(P, inner=0.1, adjoint="cg", outer=0.1),
            "adjoint step size must be a positive number, not 'cg'",
        ),
        (lambda: adjoints.steps(-1.0, 3), "adjoint step size must be a positive number, not -1.0"),
        (lambda: adjoints.steps(0.1, 0), "number of adjoint steps must be a whole number.*not 0"),
        (lambda: adjoints.neumann(0.0, 3), "eta must be a positive number, not 0.0"),
        (lambda: adjoints.neumann(0.1, 0), "number of Neumann products must be a whole number.*not 0"),
        (lambda: adjoints.cg(0.0), "tolerance tol must be a positive number, not 0.0"),
        (lambda: adjoints.cg(1e-3, max_steps=0), "max_steps must be a whole number.*not 0"),
        (lambda: adjoints.minres(float("nan")), "tolerance tol must be a positive number, not nan"),
        (lambda: adjoints.minres(1e-3, max_steps=-1), "max_steps must be a whole number.*not -1"),
        (lambda: adjoints.quasi_newton(steps=0), "quasi-Newton steps must be a whole number.*not 0"),
        (lambda: adjoints.quasi_newton(memory=0), "quasi-Newton memory must be a whole number.*not 0"),
        (
            lambda: soba(P, inner=0.1, adjoint=0.0, outer=0.1),
            "adjoint step size must be a positive number, not 0.0",
        ),
        (
            lambda: soba(P, inner=0.1, adjoint=0.1, outer=-1.0),
            "outer step size must be a positive number, not -1.0",
        ),
        (
            lambda: hoag(P, inner=0.1, outer=0.1, max_inner_steps=0),
            "max_inner_steps must be a whole number.*not 0",
        ),
        (
            lambda: hoag(P, inner=0.1, outer=0.1, max_adjoint_steps=0),
            "max_adjoint_steps must be a whole number.*not 0",
        ),
        (
            lambda: stocbio(P, inner=0.1, adjoint=-0.1, outer=0.1),
            "adjoint step size must be a positive number, not -0.1",
        ),
        (
            lambda: stocbio(P, inner=0.1, adjoint=0.1, outer=0.1, products=0),
            "products must be a whole number.*not 0",
        ),
        (
            lambda: stocbio(P, inner=0.1, adjoint=0.1, outer=0.1, inner_steps=0),
            "inner_steps must be a whole number.*not 0",
        ),
        (
            lambda: aid(P, inner=0.1, adjoint=0.1, outer=0.1, batches="both"),
            'must be "shared" or "independent", not \'both\'',
        ),
        (
            lambda: stocbio(P, inner=0.1, adjoint=0.1, outer=0.1, batches="cut"),
            'must be "shared" or "independent", not \'cut\'',
        ),
        (
            lambda: darts(P, inner=0.1, outer=0.1, virtual_step=0.0),
            "virtual step size must be a positive number, not 0.0",
        ),
        (
            lambda: darts(P, inner=0.1, outer=0.1, virtual_step=0.1, displacement=-1.0),
            "displacement must be a positive number, not -1.0",
        ),
        (
            lambda: darts_first_order(P, inner=0.0, outer=0.1),
            "inner step size must be a positive number, not 0.0",
        ),
        (
            lambda: sama(P, inner=0.1, outer=0.1, displacement=0.0),
            "displacement must be a positive number, not 0.0",
        ),
    ],
)
def test_bad_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_a_tolerance_must_be_a_function():
    with pytest.raises(TypeError, match=r"function of the step number, not 0.001: pass e.g. optax"):
        hoag(P, inner=0.1, outer=0.1, tol=1e-3)  # pyright: ignore[reportArgumentType]
