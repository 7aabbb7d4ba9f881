"""Shardings of a run's arrays on a mesh: read from its start, and kept by every step.

The solvers do not know about them. Apart from x and y, an array of a method has the shape of one of them,
perhaps with more leading dimensions (a table of gradients). It is split in the same way. Counters, seeds and
other arrays are replicated.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bilevel.batch import Batch, Draws
from bilevel.loop.data.streams import FullBatch, Given, Minibatches, Stream
from bilevel.loop.devices.agreement import check_alike
from bilevel.loop.devices.mesh_spec import Sharded, auto
from bilevel.loop.plan import Plan
from bilevel.types import PyTree

OF_X = ("x", "outer")  # fields of a method's state with x's shape, if y has the same shape


@dataclass(frozen=True)
class Like:
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
        named = [
            (kind, jax.tree_util.keystr(path), leaf)
            for kind, tree in (("x", x), ("y", y), ("model", model))
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        ]
        meshes = [leaf.sharding.mesh for _, _, leaf in named if on_mesh(leaf)]
        if not meshes:
            return None
        likes = [
            Like(kind, path, leaf.shape, leaf.sharding.spec if on_mesh(leaf) else PartitionSpec())
            for kind, path, leaf in named
        ]
        return cls(meshes[0], tuple(likes))

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def processes(self) -> int:
        return len({device.process_index for device in self.mesh.devices.flat})

    def hold(self, run: Any) -> Any:
        """Constrain each array of the run to its sharding, within a compiled step."""
        return jax.tree.map(lax.with_sharding_constraint, run, self.shardings(run))

    def hold_everywhere(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: lax.with_sharding_constraint(leaf, self.everywhere), tree)

    def put(self, run: Any) -> Any:
        """Move the run to its shardings."""
        return jax.tree.map(put, run, self.shardings(run))

    def shardings(self, run: Any) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: NamedSharding(self.mesh, self._spec(path, leaf)), run
        )

    def _spec(self, path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
        part, *within = path
        words, name = jax.tree_util.keystr(tuple(within)), _name(part)
        if name == "model":
            return next(like.spec for like in self.likes if like.kind == "model" and like.path == words)
        if name != "solver":
            return PartitionSpec()
        kind = "x" if {_name(key) for key in within} & set(OF_X) else "y"
        fits = [
            ((like.shape == leaf.shape, len(like.path), like.kind == kind), like)
            for like in self.likes
            if like.kind != "model" and words.endswith(like.path) and _ends(leaf.shape, like.shape)
        ]
        if not fits:
            return PartitionSpec()
        like = max(fits, key=lambda fit: fit[0])[1]
        return PartitionSpec(*(None,) * (len(leaf.shape) - len(like.shape)), *like.spec)


def place_run(plan: Plan, given: tuple[PyTree, ...]) -> tuple[tuple[PyTree, ...], Places | None]:
    """Place x, y, the model state and the plan's data; return the first three and their places."""
    mesh, source = plan.request.options.mesh, plan.source
    named = dict(zip(("x0", "y0", "model_state"), given, strict=True))
    check_alike(plan.team, named | {"data": source.stream})
    given, stream = lay(given, source.stream, mesh)
    places = Places.of(*given)
    if places is not None and plan.storage.offloads:
        raise ValueError(
            'offload="outer" is for one device, and x or y lie on several: leave it out, and let the mesh split x '
            "and with it the memory of its rule (bl.sharded)"
        )
    if places is not None:
        source.place(None if mesh is None else partial(lay_batch, mesh), stream)
    return given, places


def lay(
    given: tuple[PyTree, PyTree, PyTree], stream: Stream | None, sharded: Sharded | None
) -> tuple[tuple[PyTree, PyTree, PyTree], Stream | None]:
    """Place x, y, the model state, and data in memory.

    Follow `mesh=` if it was given. Otherwise arrays on a mesh stay there, and all others are replicated.
    """
    x, y, model = given
    if sharded is not None:
        rows, laid = _rows_of(stream), _laid(stream, sharded)
        shardings = (
            sharded.variable(x, sharded.x, "x0", rows),
            sharded.variable(y, sharded.y, "y0", rows),
            sharded.variable(model, sharded.model_state, "model_state", rows),
        )
        return jax.tree.map(put, given, shardings), laid
    meshes = {auto(leaf.sharding.mesh) for leaf in jax.tree.leaves((given, stream)) if on_mesh(leaf)}
    if not meshes:
        _check_one_device({"x0": x, "y0": y, "model_state": model, "data": stream})
        return given, stream
    if len(meshes) > 1:
        raise ValueError(
            f"x0, y0 and the data lie on {len(meshes)} different meshes of devices: put all of them on one"
        )
    (mesh,) = meshes
    stay = lambda leaf: put(
        leaf, NamedSharding(mesh, leaf.sharding.spec if on_mesh(leaf) else PartitionSpec())
    )
    laid = jax.tree.map(stay, (given, stream))
    return laid[0], _splitting(laid[1])


def lay_batch(sharded: Sharded, given: Given) -> Given:
    """Place a loader's batch, with its rows split. Each of several processes has a share of the rows."""
    if isinstance(given.data, Draws):
        stacked, shared = given.data.stacked, given.data.shared
        return Given(Draws(_lay_rows(sharded, stacked, draws=True), _lay_rows(sharded, shared)))
    return Given(_lay_rows(sharded, given.data))


def _lay_rows(sharded: Sharded, batch: Any, draws: bool = False) -> Any:
    """Place a batch. With `draws` it is a stack of several."""
    lead, shared = int(draws), _spans(sharded.mesh)

    def whole(leaf: Any) -> Any:  # the shape with the rows of all processes
        if not shared or leaf.ndim <= lead or sharded.data is None:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        shape = list(leaf.shape)
        shape[lead] *= jax.process_count()
        return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype)

    parts = {name: getattr(batch, name) for name in ("inner", "outer", "rows")}
    shapes = jax.tree.map(whole, parts)
    shardings = {name: sharded.rows(shapes[name], f"batch.{name}", draws) for name in parts}
    placed = lambda leaf, sharding: (
        jax.make_array_from_process_local_data(sharding, np.asarray(leaf)) if shared else put(leaf, sharding)
    )
    return replace(batch, **jax.tree.map(placed, parts, shardings))


def on_mesh(leaf: Any) -> bool:
    """Return whether an array is on a mesh of several devices."""
    sharding = getattr(leaf, "sharding", None) if isinstance(leaf, jax.Array) else None
    return isinstance(sharding, NamedSharding) and sharding.mesh.size > 1


def put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Place an array. In each of several processes it is whole, or already on the devices of all."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = put(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return leaf if leaf.sharding == sharding else jax.jit(lambda a: a, out_shardings=sharding)(leaf)
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    here = np.asarray(leaf)
    return jax.make_array_from_callback(here.shape, sharding, lambda index: here[index])


def _laid(stream: Stream | None, sharded: Sharded) -> Stream | None:
    """Split the rows of data in memory and replicate keys. A user's stream only moves to the mesh."""
    if not isinstance(stream, FullBatch | Minibatches) or stream.data is None:
        everywhere = NamedSharding(sharded.mesh, PartitionSpec())
        return jax.tree.map(lambda leaf: leaf if on_mesh(leaf) else put(leaf, everywhere), stream)
    everywhere = lambda tree: jax.tree.map(
        lambda leaf: put(leaf, NamedSharding(sharded.mesh, PartitionSpec())), tree
    )
    levels = {
        name: jax.tree.map(put, tree, sharded.rows(tree, f"data.{name}"))
        for name in ("inner", "outer", "rows")
        if (tree := getattr(stream.data, name)) is not None
    }
    rest = {name: everywhere(getattr(stream.data, name)) for name in ("key", "state", "shared")}
    laid = replace(stream, data=replace(stream.data, **levels, **rest))
    if isinstance(laid, Minibatches):
        laid = replace(laid, samplers=everywhere(laid.samplers))
    return _splitting(laid)


def _splitting(stream: Any) -> Any:
    """Split minibatches whose rows come from split arrays."""
    if not isinstance(stream, Minibatches):
        return stream
    for leaf in jax.tree.leaves((stream.data.inner, stream.data.outer)):
        if on_mesh(leaf) and len(leaf.sharding.spec) and leaf.sharding.spec[0] is not None:
            return replace(
                stream, split=NamedSharding(leaf.sharding.mesh, PartitionSpec(leaf.sharding.spec[0]))
            )
    return stream


def _check_one_device(given: dict[str, Any]) -> None:
    """Raise if a run without a mesh has arrays that were put on different devices."""
    put_on = {
        device: name
        for name, tree in given.items()
        for leaf in jax.tree.leaves(tree)
        if isinstance(leaf, jax.Array) and getattr(leaf, "committed", False)
        for device in leaf.devices()
        if len(leaf.devices()) == 1
    }
    if len(put_on) > 1:
        (one, a), (other, b) = list(put_on.items())[:2]
        raise ValueError(
            f"{a} lies on {one} and {b} on {other}: put all on one device (jax.device_put), or pass mesh= for both"
        )


def _rows_of(stream: Any) -> set[int]:
    """Return the numbers of rows of the data's levels."""
    data = getattr(stream, "data", None)
    if not isinstance(stream, FullBatch | Minibatches) or not isinstance(data, Batch):
        return set()
    return {leaf.shape[0] for leaf in jax.tree.leaves((data.inner, data.outer)) if leaf.ndim}


def _spans(mesh: Mesh) -> bool:
    return len({device.process_index for device in mesh.devices.flat}) > 1


def _ends(shape: tuple[int, ...], with_: tuple[int, ...]) -> bool:
    return len(shape) >= len(with_) and shape[len(shape) - len(with_) :] == with_


def _name(key: Any) -> str:
    return str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", ""))))
