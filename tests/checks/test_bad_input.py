"""Bad input is refused before any compute, by a message that names the value and the fix."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.oracles import Oracles
from run_options import with_options

Q = bl.problems.quadratic()
X0 = jnp.ones(2)


pytestmark = pytest.mark.usefixtures("as_users_see_it")


def solve(outer=Q.f, inner=Q.g, x0=X0, y0=X0, data=None, **options):
    solver = bl.aid(bl.Problem(inner=inner, outer=outer), inner=0.1, adjoint=0.1, outer=0.1)
    return bl.run(solver, x0, y0, data=data, **with_options({"steps": 3} | options))


def with_batch(x, y, batch):
    return jnp.sum(x * y) * jnp.mean(batch)


class Module:
    """What stands in for `torch.nn.Module`, which is not installed: it is known by where it is defined."""

    __module__ = "torch.nn.modules.module"


class Net(Module):
    pass


REFUSED = {
    "torch module as y0": (
        dict(y0=Net()),
        TypeError,
        [
            "y0 is a torch module (Net)",
            "front = bl.torch.front(module, inner=..., outer=...)",
            "**front.start",
        ],
    ),
    "torch module within x0": (dict(x0={"net": Net()}), TypeError, ["x0['net'] is a torch module (Net)"]),
    "torch module as model_state": (
        dict(model_state=Net(), inner=lambda x, y, *, state: (Q.g(x, y), {}, state)),
        TypeError,
        ["model_state is a torch module (Net)"],
    ),
    "vector objective": (
        dict(outer=lambda x, y: x * y),
        ValueError,
        ["outer objective must return a scalar", "(2,)", "jnp.mean"],
    ),
    "tuple objective": (
        dict(inner=lambda x, y: (Q.g(x, y), x)),
        TypeError,
        ["inner objective must return a loss, or (loss, metrics)"],
    ),
    "integer objective": (dict(outer=lambda x, y: jnp.int32(1)), TypeError, ["floating scalar", "int32"]),
    "one argument": (
        dict(outer=lambda x: x),
        TypeError,
        ["outer objective must take (x, y)", "functools.partial"],
    ),
    "four arguments": (
        dict(inner=lambda x, y, b, c: x),
        TypeError,
        ["inner objective must take", "(x, y, b, c)"],
    ),
    "not a function": (dict(outer=3.0), TypeError, ["outer objective must be a function", "float"]),
    "integer x0": (dict(x0=jnp.arange(2)), TypeError, ["x0 has dtype int", "dtype=float"]),
    "integer leaf": (dict(y0={"w": X0, "n": jnp.arange(2)}), TypeError, ["y0['n']", "int"]),
    "complex leaf": (dict(y0=np.ones(2) * 1j), TypeError, ["y0 has dtype complex128"]),
    "function leaf": (dict(y0=[X0, jnp.tanh]), TypeError, ["y0[1]", "partition"]),
    "empty tree": (dict(x0={}), ValueError, ["x0 has no arrays", "{}"]),
    "NaN in x0": (dict(x0=jnp.array([1.0, jnp.nan])), ValueError, ["x0 contains NaN", "1 of 2", "finite"]),
    "infinity in y0": (
        dict(y0={"a": np.array([np.inf, 1.0])}),
        ValueError,
        ["y0['a'] contains NaN or infinity"],
    ),
    "missing batch": (
        dict(inner=with_batch),
        ValueError,
        ["inner objective takes (x, y, batch)", "bl.Batch(inner=...)"],
    ),
    "missing level": (
        dict(inner=with_batch, outer=with_batch, data=bl.Batch(inner=X0)),
        ValueError,
        ["no outer data", "bl.Batch(outer=...)"],
    ),
    "unused batch": (
        dict(data=bl.Batch(outer=X0)),
        ValueError,
        ["outer objective takes only (x, y)", "outer="],
    ),
    "bare arrays": (dict(inner=with_batch, data=X0), TypeError, ["data must be a bl.Batch", "bl.epochs"]),
    "iterator of arrays": (
        dict(inner=with_batch, data=iter([X0])),
        TypeError,
        ["data must be a bl.Batch", "Array"],
    ),
    "empty iterator": (dict(data=iter([])), ValueError, ["without a single batch"]),
    "no steps": (dict(steps=0), ValueError, ["steps must be a whole number of at least 1, not 0"]),
    "negative steps": (dict(steps=-3), ValueError, ["-3"]),
    "fractional steps": (dict(steps=2.5), ValueError, ["2.5"]),
    "boolean steps": (dict(steps=True), ValueError, ["True"]),
    "no chunk": (dict(every=0), ValueError, ["every must be", "0"]),
    "negative warm-up": (
        dict(warmup=-1),
        ValueError,
        ["warmup must be a whole number of at least 0, not -1"],
    ),
    "zero tolerance": (dict(tol=0.0), ValueError, ["tolerance", "0.0"]),
    "no start": (dict(x0=None), ValueError, ["pass x0 and y0", "resume"]),
}


@pytest.mark.parametrize(("arguments", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_refused_with_the_value_and_the_fix(arguments, error, words):
    with pytest.raises(error) as refusal:
        solve(**arguments)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    "value", [0.0, -1e-3, float("nan"), float("inf"), "fast", None, True, np.ones(2)], ids=str
)
@pytest.mark.parametrize("level", ["inner", "adjoint", "outer"])
def test_step_sizes_must_be_positive_numbers(level, value):
    sizes = {"inner": 0.1, "adjoint": 0.1, "outer": 0.1} | {level: value}
    with pytest.raises(ValueError, match=f"{level} step size must be a positive number") as refusal:
        bl.aid(Q.problem, **sizes)
    assert repr(value) in str(refusal.value)
    assert "optax" in str(refusal.value)


def test_a_step_size_of_zero_or_a_function_names_the_remedy():
    with pytest.raises(ValueError, match=r"to keep the outer variables fixed, pass optax\.set_to_zero\(\)"):
        bl.aid(Q.problem, inner=0.1, adjoint=0.1, outer=0.0)
    with pytest.raises(ValueError, match=r"optax\.sgd\(function\).* part of x is a factor of g"):
        bl.itd(Q.problem, inner=lambda x: jnp.exp(x), outer=0.1)
    frozen = solve_with(bl.aid(Q.problem, inner=0.1, adjoint=0.1, outer=optax.set_to_zero()))
    np.testing.assert_array_equal(frozen.x, X0)


def solve_with(solver):
    return bl.run(solver, X0, X0, steps=3)


def test_itd_refuses_the_same_step_sizes():
    with pytest.raises(ValueError, match=r"inner step size must be a positive number, not -1"):
        bl.itd(Q.problem, inner=-1, outer=0.1)
    with pytest.raises(ValueError, match=r"outer step size must be a positive number, not 0"):
        bl.itd(Q.problem, inner=0.1, outer=0)


def test_step_sizes_may_be_any_kind_of_number():
    for value in (1, 0.1, np.float32(0.1), np.array(0.1), jnp.array(0.1)):
        assert bl.itd(Q.problem, inner=value, outer=value).name == "ITD"


@pytest.mark.parametrize(
    ("gradient", "words"),
    [
        (lambda x, y: {"g": y}, ["tree", "shaped like y"]),
        (lambda x, y: y[:1], ["float64[1]", "float64[2]"]),
        (lambda x, y: y.astype(jnp.float32), ["float32[2]", "float64[2]"]),
    ],
    ids=["tree", "shape", "dtype"],
)
def test_a_hand_written_gradient_must_be_shaped_like_y(gradient, words):
    @dataclass(frozen=True, eq=False)
    class HandWritten(Oracles):
        def inner_gradient(self, x, y, batch=None):
            return gradient(x, y)

    class Custom(bl.Problem):
        @property
        def oracles(self):
            return HandWritten(self.f, self.g)

    with pytest.raises(ValueError, match="∇_y g") as refusal:
        bl.run(bl.itd(Custom(inner=Q.g, outer=Q.f), inner=0.1, outer=0.1), X0, X0, steps=1)
    assert all(word in str(refusal.value) for word in words)


def test_nothing_is_computed_before_a_refusal():
    computed = []

    def g(x, y):
        jax.debug.callback(lambda: computed.append(1))
        return Q.g(x, y)

    with pytest.raises(ValueError, match="NaN"):
        solve(inner=g, x0=jnp.full(2, jnp.nan))
    with pytest.raises(ValueError, match="scalar"):
        solve(inner=g, outer=lambda x, y: x)
    jax.effects_barrier()
    assert computed == []


@pytest.mark.slow
def test_resuming_and_starting_do_not_mix():
    result = solve()
    solver = bl.aid(Q.problem, inner=0.1, adjoint=0.1, outer=0.1)
    with pytest.raises(ValueError, match="leave x0, y0, model_state, seed and warmup out"):
        bl.run(solver, X0, X0, steps=1, resume=result)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, ["inner batch size", "0"]),
        (11, ["inner batch size 11 exceeds the 10 examples"]),
        (bl.Batch(2, 1.5), ["outer batch size", "1.5"]),
    ],
    ids=str,
)
def test_batch_sizes(size, words):
    with pytest.raises(ValueError, match="batch size") as refusal:
        bl.epochs(bl.Batch(inner=jnp.zeros(10), outer=jnp.zeros(4)), size)
    assert all(word in str(refusal.value) for word in words)


def test_arrays_of_a_level_must_share_their_rows():
    with pytest.raises(ValueError, match=r"inner arrays must share their first axis.*\[9, 10\]"):
        bl.iid(bl.Batch(inner=(jnp.zeros(10), jnp.zeros(9))), 2)
    with pytest.raises(TypeError, match=r"data must be a bl\.Batch, not dict"):
        bl.epochs({"inner": jnp.zeros(3)}, 1)
    with pytest.raises(bl.RunError, match="probe must return a dict") as refusal:
        bl.run(
            bl.itd(Q.problem, inner=0.1, outer=0.1),
            X0,
            X0,
            steps=1,
            options=bl.RunOptions(probe=lambda s, i: 3.0),
        )
    assert isinstance(refusal.value.__cause__, TypeError)


def test_an_error_of_a_model_s_own_library_says_with_what_it_was_called():
    class Missing(Exception):
        pass

    def inner(x, y):
        raise Missing("no parameter of that name")

    problem = bl.Problem(inner=inner, outer=lambda x, y: jnp.sum(y))
    with pytest.raises(Missing, match="no parameter of that name") as caught:
        bl.run(bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1), jnp.zeros(2), jnp.zeros(3), steps=1)
    assert "the inner objective at x of float64[2] and y of float64[3]" in caught.value.__notes__[0]
