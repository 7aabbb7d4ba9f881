"""Arrays of other libraries, wherever a user may put them: as a start, as data, in minibatches, from a loader."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import bilevel as bl
from bilevel.arrays import ALIGNED, as_array, as_arrays, as_host
from run_options import with_options

pytestmark = pytest.mark.usefixtures("as_users_see_it")

NUMBERS = np.arange(12.0).reshape(6, 2)


class Tensor:
    """What `torch.Tensor` looks like from here."""

    def __init__(self, array, on="cuda", grad=True):
        self._array, self._on, self._grad = array, on, grad

    def detach(self):
        return Tensor(self._array, self._on, grad=False)

    def cpu(self):
        return Tensor(self._array, "cpu", self._grad)

    def numpy(self):
        if self._grad or self._on != "cpu":
            raise RuntimeError("torch refuses this")
        return self._array

    def __array__(self, *_, **__):
        raise RuntimeError("torch refuses this for tensors that require grad")


def memmap(array, folder):
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")


FORMS = {
    "NumPy": lambda a, _: a,
    "JAX": lambda a, _: jnp.asarray(a),
    "a torch tensor that requires grad, on a GPU": lambda a, _: Tensor(a),
    "big-endian": lambda a, _: a.astype(">f8"),
    "negative strides": lambda a, _: a[::-1].copy()[::-1],
    "every other row": lambda a, _: np.repeat(a, 2, axis=0)[::2],
    "broadcast, read-only": lambda a, _: np.broadcast_to(a[None], (3, *a.shape))[1],
    "F-ordered": lambda a, _: np.asfortranarray(a),
    "a memory map": memmap,
    "a subclass of NumPy's": lambda a, _: a.view(np.recarray),
}


@pytest.fixture(params=FORMS)
def form(request, tmp_path):
    return lambda array: FORMS[request.param](np.asarray(array), tmp_path)


def inner(x, y, batch):
    return jnp.mean(jnp.sum((batch["a"] - x[None, :] - y[None, :]) ** 2, axis=1))


def outer(x, y, batch):
    return jnp.sum((y - jnp.mean(batch, axis=0)) ** 2)


SOLVER = bl.aid(
    bl.Problem(inner=inner, outer=outer), inner=0.05, adjoint=0.05, outer=0.05
)  # compiled once for all forms


def solve(x0=(0.5, 0.25), y0=(0.0, 1.0), data=None, **options):
    data = bl.Batch(inner={"a": NUMBERS}, outer=NUMBERS) if data is None else data
    as_given = lambda a: np.array(a) if isinstance(a, tuple) else a
    return bl.run(SOLVER, as_given(x0), as_given(y0), data=data, **with_options({"steps": 4} | options))


@pytest.mark.slow
def test_as_a_start(form):
    given = solve(x0=form([0.5, 0.25]), y0=form([0.0, 1.0]))
    np.testing.assert_array_equal(given.x, solve().x)


def test_as_data(form):
    given = solve(data=bl.Batch(inner={"a": form(NUMBERS)}, outer=form(NUMBERS)))
    np.testing.assert_array_equal(given.x, solve().x)


@pytest.mark.slow
@pytest.mark.parametrize("make", [bl.epochs, bl.iid])
def test_in_minibatches(form, make):
    plain, same = (
        make(bl.Batch(inner={"a": each}, outer=each), bl.Levels(3, 2), seed=1)
        for each in (NUMBERS, form(NUMBERS))
    )
    np.testing.assert_array_equal(solve(data=same).x, solve(data=plain).x)


@pytest.mark.slow
def test_from_a_loader(form):
    parts = [NUMBERS[:3], NUMBERS[3:], NUMBERS[1:4], NUMBERS[2:5]]
    plain, same = (
        [bl.Batch(inner={"a": make(part)}, outer=make(part)) for part in parts]
        for make in (lambda a: a, form)
    )
    np.testing.assert_array_equal(solve(data=same).x, solve(data=plain).x)
    pair = bl.loaders(inner=[{"a": form(part)} for part in parts], outer=[form(part) for part in parts])
    np.testing.assert_array_equal(solve(data=pair).x, solve(data=plain).x)


@pytest.mark.slow
def test_a_real_torch_tensor():
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(NUMBERS, requires_grad=True)
    np.testing.assert_array_equal(as_array(tensor, "a"), NUMBERS)
    half = as_array(torch.ones(3, dtype=torch.bfloat16), "a")
    assert half.dtype == jnp.bfloat16
    np.testing.assert_array_equal(solve(x0=torch.tensor([0.5, 0.25], dtype=torch.float64)).x, solve().x)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_floating_types_are_kept(dtype):
    assert as_array(np.ones(3, dtype), "a").dtype == dtype
    loss = lambda x, y: jnp.sum((y - x) ** 2)
    x0, y0 = np.ones(2, dtype), np.full(2, 2, dtype)
    result = bl.run(
        bl.aid(bl.Problem(inner=loss, outer=loss), inner=0.1, adjoint=0.1, outer=0.1), x0, y0, steps=3
    )
    assert result.x.dtype == result.y.dtype == dtype
    assert result.status.code is bl.Code.COMPLETED


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.bool_, np.complex128])
def test_other_numbers_are_kept_as_data(dtype):
    given = as_array(np.ones((2, 2), dtype)[:, ::-1], "a")
    assert (given.dtype, given.shape) == (dtype, (2, 2))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), ()])
def test_shapes_are_kept(shape):
    for order in "CF":
        assert as_array(np.ones(shape, order=order), "a").shape == shape


def test_python_numbers_do_not_stay_weak():
    for number in (2.0, 3, jnp.asarray(2.0)):
        assert not as_arrays({"a": number}, "data")["a"].weak_type


def test_a_random_key_is_an_array_like_another():
    key = jax.random.key(0)
    assert as_arrays([key, np.ones(2)], "data")[0] is key


def aligned(shape) -> np.ndarray:
    """Zeros where XLA would have put them: memory that it could share."""
    size, line = 8 * int(np.prod(shape)), 64
    raw = np.zeros(size + line, np.uint8)
    return raw[-raw.ctypes.data % line :][:size].view(float).reshape(shape)


@pytest.mark.slow
def test_what_is_given_is_copied():
    """A loader may fill one buffer again and again, and a user may go on with an array."""
    buffer = aligned((1024, 2))
    held = as_array(buffer, "a")
    buffer[:] = 7.0
    np.testing.assert_array_equal(held, 0.0)

    def reused():
        for k in range(4):
            buffer[:] = k
            yield bl.Batch(inner={"a": buffer}, outer=buffer)

    fresh = [
        bl.Batch(inner={"a": np.full((1024, 2), k)}, outer=np.full((1024, 2), k))
        for k in map(float, range(4))
    ]
    np.testing.assert_array_equal(solve(data=reused()).x, solve(data=fresh).x)


@pytest.mark.parametrize("replay", ["device", "host", "off"])
def test_a_start_is_not_written_into(replay):
    x0, y0 = np.full(2, 0.5), jnp.ones(2)
    solve(x0=x0, y0=y0, snapshots=replay)
    np.testing.assert_array_equal(x0, 0.5)
    np.testing.assert_array_equal(y0, 1.0)


REFUSED = {
    "masked": (np.ma.masked_array(NUMBERS, NUMBERS > 3.0), ["is a masked array", ".filled(0.0)"]),
    "object": (np.array([1.0, None]), ["dtype object", "not an array of numbers", "convert it"]),
    "ragged": (np.array([[1.0], [1.0, 2.0]], dtype=object), ["dtype object"]),
    "string": (np.array(["a", "b"]), ["dtype <U1", "not an array of numbers"]),
    "a word": ("words", ["a str of dtype"]),
    "structured": (np.zeros(2, [("a", "f8"), ("b", "i4")]), ["('a', '<f8')", "not an array of numbers"]),
    "dates": (np.zeros(2, "M8[s]"), ["datetime64[s]", "convert it"]),
    "raw bytes": (np.zeros(2, "V8"), ["|V8"]),
    "long double": (np.zeros(2, np.longdouble), ["which JAX has no type for", "convert it first"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named_by_its_place(name):
    bad, words = REFUSED[name]
    if name == "long double" and np.dtype(np.longdouble) == np.float64:
        pytest.skip("long double is float64 here")
    places = {
        "data.inner['a']": lambda: solve(data=bl.Batch(inner={"a": bad}, outer=NUMBERS)),
        "data.outer": lambda: bl.epochs(bl.Batch(inner={"a": NUMBERS}, outer=bad), 2),
        "batch.inner['a']": lambda: solve(data=[bl.Batch(inner={"a": bad}, outer=NUMBERS)]),
    }
    for place, use in places.items():
        with pytest.raises(TypeError) as refusal:
            use()
        for word in (f"{place} is a", *words):
            assert word in str(refusal.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_as_a_start(name):
    with pytest.raises(TypeError, match=r"^y0\['w'\] "):
        solve(y0={"w": REFUSED[name][0]})


@pytest.mark.slow
def test_empty_arrays():
    with pytest.raises(ValueError, match=r"the inner arrays must share their first axis.*\[0\]"):
        bl.epochs(bl.Batch(inner=np.zeros((0, 2)), outer=NUMBERS), 1)
    loss = lambda x, y: jnp.sum((y - x) ** 2)
    empty = {"a": np.ones(2), "none": np.zeros((0, 3))}
    both = lambda x, y: loss(x["a"], y["a"]) + jnp.sum(x["none"]) + jnp.sum(y["none"])
    solver = bl.aid(bl.Problem(inner=both, outer=both), inner=0.1, adjoint=0.1, outer=0.1)
    result = bl.run(solver, empty, empty, steps=3)
    assert result.x["none"].shape == (0, 3)
    assert result.status.code is bl.Code.COMPLETED


def test_a_torch_tensor_that_numpy_has_no_type_for_goes_by_dlpack():
    class BFloat16(Tensor):
        def detach(self):
            return self

        def cpu(self):
            return self

        def numpy(self):
            raise TypeError("Got unsupported ScalarType BFloat16")

        def __dlpack__(self, **options):
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self._array.__dlpack_device__()

    given = as_array(BFloat16(jnp.ones(3, jnp.bfloat16)), "a")
    assert given.dtype == jnp.bfloat16
    np.testing.assert_array_equal(given.astype(float), 1.0)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.float32(3.5),
        np.zeros((0, 3), np.int32),
        np.arange(5) > 2,
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(7, dtype=np.uint8),
        np.arange(4).astype(jnp.bfloat16),
    ],
    ids=["strided", "scalar", "empty", "bool", "fortran", "bytes", "bfloat16"],
)
def test_a_copy_on_the_host_is_the_same_and_our_own(array):
    copy = as_host(array, "data")
    assert (copy.shape, copy.dtype) == (np.shape(array), np.asarray(array).dtype)
    np.testing.assert_array_equal(copy, array)
    assert copy.flags.c_contiguous
    assert not np.shares_memory(copy, array)
    assert copy.size == 0 or copy.ctypes.data % ALIGNED == 0


def test_an_array_of_numpy_compiles_nothing():
    """A program for every shape would stay in memory."""
    programs = jax.devices()[0].client.live_executables
    before = len(programs())
    made = as_array(np.arange(12.0).reshape(3, 4)[:, ::2], "x")
    np.testing.assert_array_equal(made, [[0, 2], [4, 6], [8, 10]])
    assert len(programs()) <= before
