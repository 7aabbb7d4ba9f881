"""Shardings of a run's arrays on a mesh: read from its start, and kept by every step.

The solvers do not know about them. Apart from x and y, an array of a method has the shape of one of them,
perhaps with more leading dimensions (a table of gradients). It is split in the same way. Counters, seeds and
other arrays are replicated.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_leaves_with_path, tree_map_with_path

from bilevel.batch import Batch, Draws
from bilevel.loop.data.streams import FullBatch, Given, Minibatches, Stream
from bilevel.loop.devices.mesh_spec import Sharded, auto
from bilevel.loop.devices.processes import check_alike
from bilevel.loop.plan import Plan
from bilevel.types import PyTree

OF_X = {"x", "outer"}  # fields of a method's state with x's shape, if y has the same shape
ROWS = ("inner", "outer", "rows")  # fields of a batch that are split


class Like(NamedTuple):
    """Array of x, y or the model state, and its split."""

    kind: str
    path: str
    shape: tuple[int, ...]
    spec: PartitionSpec


@dataclass(frozen=True)
class Places:
    """Mesh, and the split of x, y and the model state over it."""

    mesh: Mesh
    likes: tuple[Like, ...]

    @classmethod
    def of(cls, x: PyTree, y: PyTree, model: PyTree) -> "Places | None":
        """Return the places of arrays on a mesh; `None` if all are on one device."""
        meshes = [leaf.sharding.mesh for leaf in jax.tree.leaves((x, y, model)) if on_mesh(leaf)]
        likes = [
            Like(kind, keystr(path), leaf.shape, _spec_of(leaf))
            for kind, tree in (("x", x), ("y", y), ("model", model))
            for path, leaf in tree_leaves_with_path(tree)
        ]
        return cls(meshes[0], tuple(likes)) if meshes else None

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def hold(self, run: Any) -> Any:
        """Constrain each array of the run to its sharding, within a compiled step."""
        return lax.with_sharding_constraint(run, self._shardings(run))

    def hold_everywhere(self, tree: PyTree) -> PyTree:
        return lax.with_sharding_constraint(tree, self.everywhere)

    def put(self, run: Any) -> Any:
        """Move the run to its shardings."""
        return jax.tree.map(put, run, self._shardings(run))

    def _shardings(self, run: Any) -> Any:
        return tree_map_with_path(lambda path, leaf: NamedSharding(self.mesh, self._spec(path, leaf)), run)

    def _spec(self, path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
        part, *within = [keystr((key,), simple=True) for key in path]
        words = keystr(path[1:])
        if part == "model":
            return next(like.spec for like in self.likes if like.kind == "model" and like.path == words)
        kind = "x" if OF_X & {*within} else "y"
        fits = [
            ((like.shape == leaf.shape, len(like.path), like.kind == kind), like)
            for like in self.likes
            if part == "solver" and like.kind != "model" and words.endswith(like.path)
            if leaf.shape[max(0, leaf.ndim - len(like.shape)) :] == like.shape
        ]
        if not fits:
            return PartitionSpec()
        like = max(fits, key=lambda fit: fit[0])[1]
        return PartitionSpec(*(None,) * (leaf.ndim - len(like.shape)), *like.spec)


def place_run(plan: Plan, given: tuple[PyTree, ...]) -> tuple[tuple[PyTree, ...], Places | None]:
    """Place x, y, the model state and the plan's data; return the first three and their places.

    Follow `mesh=` if it was given. Otherwise arrays on a mesh stay there, and all others are replicated.
    """
    mesh, source = plan.request.options.mesh, plan.source
    named: dict[str, PyTree] = dict(zip(("x0", "y0", "model_state"), given, strict=True))
    check_alike(plan.team, named | {"data": source.stream})
    if mesh is None:
        given, stream = _kept_on_mesh(named, source.stream)
    else:
        stream, rules = _split(source.stream, mesh), (mesh.x, mesh.y, mesh.model_state)
        rows = _rows_of(source.stream)
        each = zip(named.items(), rules, strict=True)
        shardings = tuple(mesh.variable(tree, rule, name, rows) for (name, tree), rule in each)
        given = jax.tree.map(put, given, shardings)
    places = Places.of(*given)
    if places is not None and plan.storage.offloads:
        raise ValueError(
            'offload="outer" is for one device, and x or y lie on several: leave it out, and let the mesh split x '
            "and with it the memory of its rule (bl.sharded)"
        )
    if places is not None:
        source.place(None if mesh is None else partial(lay_batch, mesh), stream)
    return given, places


def _kept_on_mesh(
    named: dict[str, PyTree], stream: Stream | None
) -> tuple[tuple[PyTree, ...], Stream | None]:
    """Return x0, y0, the model state and the stream on the mesh that some of their arrays are on, if any."""
    given = tuple(named.values())
    meshes = {auto(leaf.sharding.mesh) for leaf in jax.tree.leaves((given, stream)) if on_mesh(leaf)}
    if not meshes:
        _check_one_device(named | {"data": stream})
        return given, stream
    if len(meshes) > 1:
        raise ValueError(
            f"x0, y0 and the data lie on {len(meshes)} different meshes of devices: put all of them on one"
        )
    (mesh,) = meshes
    stay = lambda leaf: put(leaf, NamedSharding(mesh, _spec_of(leaf)))
    given, stream = jax.tree.map(stay, (given, stream))
    return given, _splitting(stream)


def lay_batch(sharded: Sharded, given: Given) -> Given:
    """Place a loader's batch, with its rows split. Each of several processes has a share of the rows."""
    if isinstance(given.data, Draws):
        stacked, shared = given.data.stacked, given.data.shared
        return Given(Draws(_lay_rows(sharded, stacked, 1), _lay_rows(sharded, shared)))
    return Given(_lay_rows(sharded, given.data))


def _lay_rows(sharded: Sharded, batch: Any, lead: int = 0) -> Any:
    """Place a batch, or a stack of several, whose rows come after the first `lead` dimensions."""
    shared = sharded.mesh.is_multi_process

    def whole(leaf: Any) -> Any:  # the shape with the rows of all processes
        times = jax.process_count() if shared and sharded.data is not None else 1
        shape = [size * times if i == lead else size for i, size in enumerate(leaf.shape)]
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    def place(leaf: Any, sharding: NamedSharding) -> jax.Array:
        if shared:
            return jax.make_array_from_process_local_data(sharding, np.asarray(leaf))
        return put(leaf, sharding)

    parts = {name: getattr(batch, name) for name in ROWS}
    shapes = jax.tree.map(whole, parts)
    shardings = {name: sharded.rows(shapes[name], f"batch.{name}", lead) for name in ROWS}
    return replace(batch, **jax.tree.map(place, parts, shardings))


def on_mesh(leaf: Any) -> bool:
    """Return whether an array is on a mesh of several devices."""
    sharding = getattr(leaf, "sharding", None) if isinstance(leaf, jax.Array) else None
    return isinstance(sharding, NamedSharding) and sharding.mesh.size > 1


def _spec_of(leaf: Any) -> PartitionSpec:
    return leaf.sharding.spec if on_mesh(leaf) else PartitionSpec()


def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Place an array. In each of several processes it is whole, or already on the devices of all."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = put(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return leaf if leaf.sharding == sharding else jax.jit(lambda a: a, out_shardings=sharding)(leaf)
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    here = np.asarray(leaf)  # device_put would send it to all processes to compare it
    return jax.make_array_from_callback(here.shape, sharding, lambda index: here[index])


def _split(stream: Any, sharded: Sharded) -> Stream | None:
    """Split the rows of data in memory and replicate keys. A user's stream only moves to the mesh."""
    everywhere = NamedSharding(sharded.mesh, PartitionSpec())
    if (data := _data_of(stream)) is None:
        return jax.tree.map(lambda leaf: leaf if on_mesh(leaf) else put(leaf, everywhere), stream)
    rows = {name: sharded.rows(getattr(data, name), f"data.{name}") for name in ROWS}
    shardings = jax.tree.map(lambda _: everywhere, stream)
    shardings = replace(shardings, data=replace(shardings.data, **rows))
    return _splitting(jax.tree.map(put, stream, shardings))


def _splitting(stream: Any) -> Any:
    """Split minibatches whose rows come from split arrays."""
    if isinstance(stream, Minibatches):
        for leaf in jax.tree.leaves((stream.data.inner, stream.data.outer)):
            if on_mesh(leaf) and (axes := [*leaf.sharding.spec, None][0]) is not None:
                return replace(stream, split=NamedSharding(leaf.sharding.mesh, PartitionSpec(axes)))
    return stream


def _check_one_device(given: dict[str, Any]) -> None:
    """Raise if a run without a mesh has arrays that were put on different devices."""
    put_on = {
        device: name
        for name, tree in given.items()
        for leaf in jax.tree.leaves(tree)
        if isinstance(leaf, jax.Array) and getattr(leaf, "committed", False) and len(leaf.devices()) == 1
        for device in leaf.devices()
    }
    if len(put_on) > 1:
        (one, a), (other, b) = list(put_on.items())[:2]
        raise ValueError(
            f"{a} lies on {one} and {b} on {other}: put all on one device (jax.device_put), or pass mesh= for both"
        )


def _data_of(stream: Any) -> Batch | None:
    """Return the data that a stream has in memory."""
    return stream.data if isinstance(stream, FullBatch | Minibatches) else None


def _rows_of(stream: Any) -> set[int]:
    """Return the numbers of rows of the data's levels."""
    data = _data_of(stream) or Batch()
    return {leaf.shape[0] for leaf in jax.tree.leaves((data.inner, data.outer)) if leaf.ndim}
