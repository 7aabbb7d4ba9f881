"""Runs over eight devices: the trajectory of one device, and every array where it was put."""

import jax
import jax.numpy as jnp
import nets
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import bilevel as bl
from run_options import with_options

STEPS = 5
MESH = Mesh(np.array(jax.devices()), ("data",))
FSDP = bl.sharded(MESH, y="data")

SOLVERS = {
    "aid": lambda p: bl.aid(p, inner=optax.adam(1e-2), adjoint=0.1, outer=optax.adam(1e-1)),
    "cg": lambda p: bl.aid(p, inner=0.1, adjoint=bl.adjoints.cg(1e-9), outer=0.1),
    "soba": lambda p: bl.soba(p, inner=0.1, adjoint=0.1, outer=0.1),
    "itd": lambda p: bl.itd(p, inner=0.1, outer=0.1, inner_steps=2),
    "stocbio": lambda p: bl.stocbio(p, inner=0.1, adjoint=0.1, outer=0.1, products=2),
    "f2sa": lambda p: bl.f2sa(p, inner=0.1, outer=0.1, penalty=2.0),
    "tuning_free": bl.tuning_free,
    "saba": lambda p: bl.saba(p, inner=0.1, adjoint=0.1, outer=0.1),
    "qnbo": lambda p: bl.solvers.qnbo(p, inner=0.1, outer=0.1, inner_steps=1, memory=2),
}


def same(left, right, **tolerance):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, **({"rtol": 1e-8, "atol": 1e-11} | tolerance))


def specs(tree):
    return {
        jax.tree_util.keystr(path): leaf.sharding.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.fixture(autouse=True)
def promotion():
    """As users have it: Adam mixes dtypes that strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def run(solver, steps=STEPS, data=None, **asked):
    data = nets.batch() if data is None else data
    start = {} if "resume" in asked else dict(zip(("x0", "y0"), nets.start(), strict=True))
    return bl.run(
        solver,
        data=data,
        steps=steps,
        **with_options({**start, **asked}),
    )


def test_offloading_is_for_one_device():
    with pytest.raises(ValueError, match="is for one device, and x or y lie on several: leave it out"):
        run(SOLVERS["aid"](nets.problem), mesh=MESH, offload="outer")


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_parameters_split_over_eight_devices(name):
    """The same trajectory, and whatever has x's or y's shape lies as that does, after the first step and the last."""
    # Of a tuning-free method, whose tests rounding may turn, on a problem with one solution.
    solver = SOLVERS[name](nets.convex if name == "tuning_free" else nets.problem)
    seen = []
    split = run(solver, mesh=FSDP, every=2, hooks=[lambda event: seen.append(specs(event.run))])
    alone = run(solver, every=2)
    same(split.state, alone.state)
    same(split.trace["outer_value"], alone.trace["outer_value"])
    assert seen[0] == seen[1] == seen[2] == specs(split.run)
    of_y = {"in": P(None, "data"), "bias": P("data"), "out": P("data")}
    for path, leaf in jax.tree_util.tree_leaves_with_path(split.state):
        words = jax.tree_util.keystr(path)
        found = tuple(leaf.sharding.spec)
        if leaf.shape[-1:] == (nets.ROWS,):
            assert found == (None,) * (leaf.ndim - 1) + ("data",), words
        elif name_of := next((each for each in of_y if words.endswith(f"['{each}']")), None):
            more = leaf.ndim - nets.start()[1][name_of].ndim
            assert found == (None,) * more + tuple(of_y[name_of]), words
        else:
            assert found == (), words
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(split.run)} == {8}


@pytest.mark.slow
def test_sharded_inputs_are_followed_without_a_mesh_argument():
    """Explicit meshes too, whose types no objective was written for; what is not on the mesh goes everywhere."""
    x0, y0 = nets.start()
    explicit = jax.make_mesh((8,), ("data",))
    on = lambda tree, spec: jax.device_put(tree, NamedSharding(explicit, spec))
    solver = SOLVERS["aid"](nets.problem)
    y0 = y0 | {"in": on(y0["in"], P(None, "data"))}
    split = bl.run(solver, on(x0, P("data")), y0, data=on(nets.batch(), P("data")), steps=STEPS)
    same(split.state, run(solver).state)
    assert split.x.sharding.spec == P("data")
    assert split.state.v["in"].sharding.spec == P(None, "data")
    assert split.y["bias"].sharding.spec == P()
    again = bl.run(solver, data=on(nets.batch(), P("data")), steps=STEPS, resume=split)
    assert specs(again.run) == specs(split.run)


@pytest.mark.slow
def test_minibatches_are_split_too():
    data = bl.epochs(nets.batch(), size=bl.Batch(inner=16, outer=8), seed=3)
    solver = bl.stocbio(nets.of_rows, inner=0.1, adjoint=0.1, outer=0.1, products=2, batches="independent")
    same(run(solver, data=data, mesh=MESH).state, run(solver, data=data).state)


@pytest.mark.slow
def test_parameters_that_are_split_are_evaluated_as_whole_ones():
    """On rows that eight devices do not divide, from arrays on the host, on a device, and on the mesh."""
    host = jax.tree.map(lambda a: a[:10], nets.batch().outer)
    mesh = NamedSharding(MESH, P())
    kinds = {"host": host, "device": jax.tree.map(jnp.asarray, host), "mesh": jax.device_put(host, mesh)}
    solver = SOLVERS["soba"](nets.problem)
    hooks = [bl.hooks.Evaluate(nets.outer, data, every=5, size=4, name=name) for name, data in kinds.items()]
    found, alone = run(solver, mesh=FSDP, hooks=hooks).probes, run(solver)
    for name in kinds:
        np.testing.assert_allclose(found[f"{name}/loss"], [nets.outer(None, alone.y, host)], rtol=1e-8)


@pytest.mark.slow
def test_a_loader_s_batches_are_placed_as_they_come():
    whole = nets.batch()
    rows = lambda i: slice(8 * i, 8 * i + 8)
    batches = [
        bl.Batch(
            *(tuple(a[rows(i)] for a in level) for level in (whole.inner, whole.outer)),
            rows=bl.Levels(np.arange(8 * i, 8 * i + 8), None),
        )
        for i in (0, 1, 2, 3)
    ]
    seen = []
    solver = bl.itd(nets.of_rows, inner=0.1, outer=0.1, inner_steps=2, batches="shared")
    ask = dict(steps=4, every=1)
    split = run(
        solver,
        data=batches,
        mesh=bl.sharded(MESH, x="data"),
        **ask,
        record=lambda state, info, batch: {"first": batch.inner[1]},
        hooks=[lambda event: seen.append(event.run.x.sharding.spec)],
    )
    same(split.state, run(solver, data=batches, **ask).state)
    assert set(seen) == {P("data")}
    np.testing.assert_array_equal(split.trace["first"], [batch.inner[1] for batch in batches])


def test_a_short_last_batch_is_not_the_loader_s_error():
    inner, outer = lambda x, y, rows: jnp.mean((rows @ y - x) ** 2), lambda x, y, rows: jnp.mean(rows @ y)
    solver = bl.itd(bl.Problem(inner=inner, outer=outer), inner=0.1, outer=0.1)
    batches = [bl.Batch(inner=np.ones((n, 2)), outer=np.ones((n, 2))) for n in (16, 16, 12)]
    said = (
        "laying out the loader's batch raised .*batch.inner.* 12 rows cannot be split evenly .*drop_last=True"
    )
    with pytest.raises(bl.RunError, match=said) as caught:
        bl.run(solver, 0.0, np.zeros(2), data=batches, options=bl.RunOptions(mesh=MESH), steps=3)
    assert caught.value.result.steps == 2


@pytest.mark.slow
def test_going_back_keeps_the_placement():
    """A run that diverges, and one that is halved: both return to kept copies."""
    quarrel = lambda **asked: bl.run(
        bl.itd(
            bl.Problem(inner=lambda x, y: jnp.sum((y - x) ** 2), outer=lambda x, y: jnp.sum(y**2)),
            inner=0.4,
            outer=30.0,
        ),
        np.ones(16),
        np.ones(16),
        steps=600,
        **with_options(asked | dict(every=50, snapshots="host")),
    )
    stopped = quarrel(mesh=bl.sharded(MESH, x="data", y="data"))
    assert stopped.status.code is bl.Code.DIVERGED
    assert stopped.x.sharding.spec == stopped.y.sharding.spec == P("data")
    halved = quarrel(mesh=bl.sharded(MESH, x="data", y="data"), on_divergence="halve")
    assert halved.halvings == quarrel(on_divergence="halve").halvings != ()
    assert halved.x.sharding.spec == halved.y.sharding.spec == P("data")


@pytest.mark.slow
def test_best_so_far_checkpoints_and_another_mesh(tmp_path):
    solver, best = SOLVERS["aid"](nets.problem), bl.hooks.Best()
    run(solver, steps=3, mesh=FSDP, checkpoint=tmp_path, hooks=[best], every=1)
    assert best.x.sharding.spec == P("data")
    assert best.y["in"].sharding.spec == P(None, "data")
    four = bl.sharded(Mesh(np.array(jax.devices()[:4]), ("part",)), x=None, y="part")
    unbroken = run(solver, steps=6)
    on_four = run(solver, steps=3, resume=tmp_path, mesh=four)
    assert on_four.state.v["in"].sharding.spec == P(None, "part")
    assert on_four.x.sharding.spec == P()
    on_one = run(solver, steps=3, resume=tmp_path)
    assert len(on_one.x.sharding.device_set) == 1
    for result in (on_four, on_one):
        same(result.state, unbroken.state)


@pytest.mark.slow
def test_a_tree_of_partition_specs_is_followed_to_the_letter():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    rule = {"in": P("data", "model"), "bias": P(), "out": P(("data", "model"))}
    split = run(
        SOLVERS["aid"](nets.problem), mesh=bl.sharded(mesh, data=("data", "model"), x=P("model"), y=rule)
    )
    assert {name: leaf.sharding.spec for name, leaf in split.y.items()} == rule
    assert split.state.v["in"].sharding.spec == P("data", "model")
    assert split.x.sharding.spec == P("model")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: bl.sharded(3), "mesh must be a jax.sharding.Mesh, not 3: pass e.g. jax.make_mesh"),
        (lambda: bl.sharded(MESH, y="model"), "names no axis of the mesh, 'model': choose from 'data'"),
        (lambda: bl.sharded(Mesh(np.empty((), object), ())), "mesh has no axis"),
        (lambda: bl.sharded(Mesh(np.array(jax.devices()[:1] * 2), "a")), "mesh has the same device twice"),
        (lambda: bl.sharded(MESH, data=("data", "data")), "names an axis twice"),
        (lambda: bl.sharded(MESH, y=P(P.UNCONSTRAINED)), "give every dimension axes of the mesh, or None"),
        (lambda: bl.sharded(MESH, data=3), "data must be an axis of the mesh, or a tuple of some, not 3"),
        (
            lambda: bl.sharded(MESH, y={"in": 3}),
            "y must be an axis of the mesh, a PartitionSpec, a tree of them",
        ),
        (lambda: bl.sharded(MESH, y=P("model")), "the mesh has no axis 'model': choose from 'data'"),
        (lambda: bl.sharded(MESH, y={"in": P()}), "for y0 does not fit y0: it has nothing for 'bias'"),
        (
            lambda: bl.sharded(MESH, y=P(None, None, "data")),
            r"y0\['bias'\] has shape \(32,\), fewer dimensions",
        ),
        (lambda: bl.sharded(MESH, y={"in": P("data"), "bias": P(), "out": P()}, x=P("data")), None),
    ],
)
def test_rules_that_do_not_fit_are_refused(ask, says, as_users_see_it):
    solver = SOLVERS["itd"](nets.problem)
    if says is None:
        assert run(solver, steps=1, mesh=ask()).y["in"].sharding.spec == P("data")
        return
    with pytest.raises((TypeError, ValueError), match=says):
        run(solver, mesh=ask())


def test_two_devices_without_a_mesh_are_refused():
    (x0, y0), (one, other, *_) = nets.start(), jax.devices()
    x0, y0 = jax.device_put(x0, one), jax.device_put(y0, other)
    with pytest.raises(ValueError, match=r"x0 lies on .*0.* and y0 on .*1.*: put all on one device"):
        bl.run(SOLVERS["itd"](nets.problem), x0, y0, data=nets.batch(), steps=1)


def test_what_does_not_divide_is_named_with_the_remedy():
    x0, y0 = nets.start(60)
    solver = SOLVERS["itd"](nets.problem)
    with pytest.raises(
        ValueError,
        match=r"data.inner\[0\] has shape \(60, 16\), and its 60 rows cannot be split evenly "
        r"over the 8 devices of mesh axis 'data': leave 4 out, pad to 64",
    ):
        bl.run(solver, x0, y0, data=nets.batch(60), steps=1, options=bl.RunOptions(mesh=MESH))
    odd = bl.Problem(inner=lambda x, y: jnp.sum(y**2), outer=lambda x, y: jnp.sum(y))
    with pytest.raises(
        ValueError, match=r"y0 has shape \(257, 257\), of which no dimension is divisible by the 8"
    ):
        bl.run(
            bl.itd(odd, inner=0.1, outer=0.1),
            np.ones(2),
            np.ones((257, 257)),
            steps=1,
            options=bl.RunOptions(mesh=FSDP),
        )
    two = Mesh(np.array(jax.devices()[:2]), ("data",))
    on = lambda leaf, mesh: jax.device_put(leaf, NamedSharding(mesh, P()))
    with pytest.raises(ValueError, match="lie on 2 different meshes of devices: put all of them on one"):
        bl.run(bl.itd(odd, inner=0.1, outer=0.1), on(np.ones(2), two), on(np.ones(2), MESH), steps=1)
