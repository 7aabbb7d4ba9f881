"""The page "Troubleshooting" has an entry for every status code, and quotes the real messages."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from pages import ROOT

import bilevel as bl
from bilevel.checks.derivatives import FIRST, NoDerivative

TEXT = (ROOT / "docs/how-to/troubleshooting.md").read_text()


def test_every_status_code_has_an_entry_and_every_entry_is_a_code():
    (section,) = re.findall(r"^## By status code\n(.*?)^## ", TEXT, re.DOTALL | re.MULTILINE)
    entries = re.findall(r"^### `(\w+)`$", section, re.MULTILINE)
    assert entries == [code.value for code in bl.Code]


def test_the_index_leads_to_every_symptom():
    (section,) = re.findall(r"^## By symptom\n(.*?)^## ", TEXT, re.DOTALL | re.MULTILINE)
    slugs = {
        re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        for title in re.findall(r"^### (.*)$", section, re.MULTILINE)
    }
    index = section.split("###")[0]
    assert set(re.findall(r"\]\(#([^)]+)\)", index)) == slugs | {"diverged"}


def with_own_backward(forward, backward):
    """An operation with a first derivative and no second one: its forward pass is itself, or both leave JAX."""
    operation = jax.custom_vjp(forward)
    operation.defvjp(lambda z: (operation(z), z), lambda z, c: (backward(z, c),))
    return operation


def outside(function):
    """Computed by NumPy, of which JAX has no derivative."""
    return lambda *z: jax.pure_callback(
        function, jax.ShapeDtypeStruct((), z[0].dtype), *z, vmap_method="sequential"
    )


square, slope = lambda z: z**2, lambda z, c: 2 * z * c
OPERATIONS = {
    "a kernel": with_own_backward(square, slope),
    "a callback": with_own_backward(outside(square), outside(slope)),
}
PROBLEMS = {
    kind: bl.Problem(inner=lambda x, y, op=op: op(y - x), outer=lambda x, y: y**2)
    for kind, op in OPERATIONS.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROBLEMS)
def test_an_operation_without_a_second_derivative_is_explained(kind):
    problem, start = PROBLEMS[kind], (jnp.ones(()), jnp.zeros(()))
    solver = bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1)
    for call in (
        lambda: bl.run(solver, *start, steps=3),
        lambda: bl.sweep([solver], *start, steps=3),
        lambda: bl.advise(problem, *start),
        lambda: solver.step(solver.init(*start)),
    ):
        with pytest.raises((bl.RunError, NoDerivative)) as caught:
            call()
        error = caught.value.__cause__ if isinstance(caught.value, bl.RunError) else caught.value
        assert isinstance(error, NoDerivative)
        assert str(error).startswith("this method takes second derivatives of the inner objective, ")
        assert str(error).endswith(FIRST)
        assert ("calls Python code by jax.pure_callback" in str(error)) == (kind == "a callback")
        assert error.__cause__ is not None  # JAX's own words


def test_first_derivatives_suffice_the_methods_that_the_error_names():
    assert re.findall(r"bl\.([\w.]+)", FIRST) == ["solvers.bome", "f2sa", "solvers.sama"]
    for method in (bl.solvers.bome, bl.f2sa, bl.solvers.sama):
        options = {"penalty": 10.0} if method is bl.f2sa else {}
        state = (solver := method(PROBLEMS["a callback"], inner=0.1, outer=0.1, **options)).init(
            jnp.ones(()), jnp.zeros(())
        )
        jax.eval_shape(lambda state, step=solver.step: step(state)[0].x, state)


def test_what_has_no_first_derivative_is_not_said_to_lack_the_second():
    problem = bl.Problem(inner=lambda x, y: outside(square)(y - x), outer=lambda x, y: y**2)
    solver, start = bl.solvers.bome(problem, inner=0.1, outer=0.1), (jnp.ones(()), jnp.zeros(()))
    for call in (
        lambda: bl.run(solver, *start, steps=3),
        lambda: bl.sweep([solver], *start, steps=3),
        lambda: bl.advise(problem, *start),
    ):
        with pytest.raises(
            NoDerivative, match=r"^the inner objective calls Python code by jax\.pure_callback"
        ):
            call()


def shrunk(y):
    """A loop that stops by itself."""
    return jax.lax.while_loop(lambda z: jnp.sum(z**2) > 1, lambda z: z / 2, y)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["inner", "outer"])
@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (
            lambda y: outside(square)(y),
            r"calls Python code by jax\.pure_callback, as torch code needs, .*: write it",
        ),
        (lambda y: jnp.sum(shrunk(y)), r"has a lax\.while_loop, .*: use lax\.scan"),
    ],
    ids=["callback", "loop"],
)
def test_an_operation_without_a_first_derivative_is_named_at_either_level(level, operation, words):
    fine = lambda x, y: jnp.sum((y - x) ** 2)
    parts = {"inner": fine, "outer": fine} | {level: lambda x, y: fine(x, y) + operation(y)}
    problem, start = bl.Problem(**parts), (jnp.ones(()), jnp.zeros(()))
    for make in (partial(bl.aid, adjoint=0.1), bl.solvers.bome):
        with pytest.raises(NoDerivative, match=rf"^the {level} objective {words}"):
            bl.run(make(problem, inner=0.1, outer=0.1), *start, steps=3)
    with pytest.raises(NoDerivative, match=rf"^the {level} objective {words}"):
        bl.sweep(bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1), *start, steps=3)


def test_meta_learners_explain_it_too():
    loss = lambda x, y, batch: OPERATIONS["a kernel"](y - batch)
    data = bl.Batch(inner=jnp.ones(3), outer=jnp.ones(3))
    solver = bl.imaml(bl.Problem(inner=loss, outer=loss), inner=0.1, outer=0.1, proximal_weight=1.0)
    with pytest.raises((bl.RunError, NoDerivative), match="second derivatives of the inner objective"):
        bl.run(solver, 1.0, 1.0, data=data, steps=3)


def test_another_error_of_an_objective_is_left_as_it_is():
    def odd(x, y):
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        bl.run(bl.aid(bl.Problem(inner=odd, outer=odd), inner=0.1, adjoint=0.1, outer=0.1), 1.0, 0.0, steps=1)
    assert caught.value.__cause__ is None


def test_a_tolerance_that_is_met_by_exactly_zero_says_so():
    still = bl.Problem(inner=lambda x, y: (y - 1.0) ** 2, outer=lambda x, y: y**2)
    result = bl.run(bl.itd(still, inner=0.1, outer=0.1), 1.0, 0.0, steps=10, tol=1e-6)
    assert result.status.code is bl.Code.CONVERGED
    assert "Does f depend on x" in result.status.message
