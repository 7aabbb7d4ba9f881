"""The default mesh of `jax.make_mesh`, whose axes are Explicit, and `jax.shard_map`: the numbers of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import bilevel as bl

MESH = jax.make_mesh((8,), ("lanes",))
RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(16, 8)), RNG.normal(size=(8, 8))
DATA = bl.Batch(inner=jnp.asarray(A), outer=jnp.asarray(B))
PROBLEM = bl.Problem(
    inner=lambda x, y, batch: jnp.mean((batch @ y - 1.0) ** 2) + jnp.mean((y - x) ** 2),
    outer=lambda x, y, batch: jnp.mean((batch @ y - 2.0) ** 2),
)
SOLVER = bl.aid(PROBLEM, inner=0.05, adjoint=0.05, outer=0.1)
X0, Y0 = jnp.ones(8), jnp.zeros(8)


def on(tree, spec, mesh=MESH):
    return jax.device_put(tree, NamedSharding(mesh, spec))


def scanned(x, data=DATA, solver=SOLVER):
    run = bl.start(solver, x, Y0, data)
    return bl.scan(solver, run, data, steps=5)[0].x


@pytest.fixture(scope="module")
def one():
    """By hand, on one device: AID's three updates at the same point."""
    x, y, v = np.ones(8), np.zeros(8), np.zeros(8)
    hessian = 2 * (A.T @ A / 16 + np.eye(8) / 8)
    for _ in range(5):
        y = y - 0.05 * (2 * A.T @ (A @ y - 1) / 16 + 2 * (y - x) / 8)
        v = v - 0.05 * (hessian @ v - 2 * B.T @ (B @ y - 2) / 8)
        x = x - 0.1 * (2 / 8) * v
    return x


def test_the_mesh_is_the_default_one():
    assert MESH.axis_types == (AxisType.Explicit,)


def test_by_hand(one):
    np.testing.assert_allclose(scanned(X0), one, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    {
        "run with a mesh": lambda: (
            bl.run(SOLVER, X0, Y0, data=DATA, steps=5, options=bl.RunOptions(mesh=MESH)).x
        ),
        "run": lambda: bl.run(SOLVER, on(X0, P("lanes")), Y0, data=on(DATA, P("lanes")), steps=5).x,
        "sweep": lambda: bl.sweep([SOLVER, SOLVER], X0, Y0, data=on(DATA, P("lanes")), steps=5).x[1],
        "sweep of starts": lambda: bl.sweep(
            SOLVER, starts=[(on(X0, P("lanes")), on(Y0, P()))], data=DATA, steps=5
        ).x[0],
        "scan": lambda: scanned(on(X0, P("lanes")), on(DATA, P("lanes"))),
    }.items(),
    ids=lambda named: named[0],
)
def test_arrays_on_it_give_the_numbers_of_one_device(call, one):
    np.testing.assert_allclose(call[1](), one, rtol=1e-9)


def test_inside_jit_it_has_the_numbers_or_the_remedy_is_said(one):
    """JAX 0.10 follows the lanes there, later versions want every sharding named."""
    try:
        found = jax.jit(jax.vmap(scanned))(on(jnp.ones((8, 8)), P("lanes")))
    except ValueError as error:
        assert "AxisType.Auto,)" in str(error)  # noqa: PT017
    else:
        np.testing.assert_allclose(np.asarray(found)[3], one, rtol=1e-9)


def test_where_jax_wants_every_sharding_named_the_remedy_is_said():
    with pytest.raises(ValueError, match=r"a mesh whose axes are Explicit, .*AxisType\.Auto,\)"):
        jax.vmap(scanned)(on(jnp.ones((8, 8)), P("lanes")))


def test_another_error_inside_jit_is_left_as_it_is():
    with pytest.raises(ValueError, match="the outer objective takes"):
        jax.jit(lambda x: scanned(x, None))(on(X0, P()))


def lanes(solver, **options):
    auto = jax.make_mesh((8,), ("lanes",), axis_types=(AxisType.Auto,))
    over = jax.vmap(lambda x: scanned(x, DATA, solver))
    return jax.jit(jax.shard_map(over, mesh=auto, in_specs=P("lanes"), out_specs=P("lanes"), **options)), over


def test_lanes_of_a_shard_map_do_not_mix():
    """y0 is the same on all devices; JAX would sum its gradients over them, as if all lanes shared one y."""
    starts = jnp.asarray(np.arange(8.0)[:, None] * np.ones(8))
    mapped, over = lanes(SOLVER)
    np.testing.assert_allclose(mapped(starts), jax.jit(over)(starts), rtol=1e-9)


def test_a_loop_that_a_shard_map_refuses_names_the_option():
    starts = jnp.asarray(np.arange(8.0)[:, None] * np.ones(8))
    solver = bl.aid(PROBLEM, inner=0.05, adjoint=bl.adjoints.cg(), outer=0.1)
    with pytest.raises(ValueError, match=r"refused a loop inside jax\.shard_map, .* pass check_vma=False"):
        lanes(solver)[0](starts)
    mapped, over = lanes(solver, check_vma=False)
    np.testing.assert_allclose(mapped(starts), jax.jit(over)(starts), rtol=1e-9)
