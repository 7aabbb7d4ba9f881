"""Specification of how arrays of a run are split over a mesh of devices: `mesh=` of a run."""

import math
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import keystr, tree_map_with_path

from bilevel.arrays import leaves_of
from bilevel.types import PyTree
from bilevel.words import shown

ROWS = "rows"  # for x: arrays with a row for every row of the data
SMALL = 2**16  # entries of an array that may be replicated if no dimension can be split

Axes = str | tuple[str, ...] | None


class CannotBeSplit(ValueError):
    """Error for a dimension of an array that the devices of a mesh do not divide."""


@dataclass(frozen=True)
class Sharded:
    """Mesh, and the rules by which arrays are split over it; see `bl.sharded`."""

    mesh: Mesh
    data: Axes
    x: Any
    y: Any
    model_state: Any

    def variable(self, tree: PyTree, rule: Any, name: str, rows: set[int]) -> PyTree:
        """Return the shardings of a variable's arrays."""
        if rule == ROWS:
            return self.rows(tree, name, counts=rows)
        if rule is None or isinstance(rule, str) or _names(rule):
            specs = tree_map_with_path(
                lambda path, leaf: self._largest(leaf, rule, name + keystr(path)), tree
            )
        else:
            specs = _prefixed(rule, tree, name)
        return self._checked(tree, specs, name)

    def rows(self, tree: PyTree, name: str, lead: int = 0, counts: set[int] | None = None) -> PyTree:
        """Return shardings that split the rows of arrays, after `lead` other dimensions, and replicate scalars.

        With `counts`, arrays with another number of rows are replicated.
        """

        def spec(leaf: Any) -> PartitionSpec:
            has_rows = leaf.ndim > lead and (counts is None or leaf.shape[lead] in counts)
            split = self.data is not None and has_rows
            return PartitionSpec(*(None,) * lead, self.data) if split else PartitionSpec()

        return self._checked(tree, jax.tree.map(spec, tree), name)

    def _largest(self, leaf: jax.Array, axes: Axes, where: str) -> PartitionSpec:
        """Split the largest dimension that the axis divides, the last of equal ones."""
        if axes is None:
            return PartitionSpec()
        parts = size_of(self.mesh, axes)
        fits = [(size, i) for i, size in enumerate(leaf.shape) if size and size % parts == 0]
        if not fits:
            if leaf.size >= SMALL:
                raise ValueError(
                    f"{where} has shape {tuple(leaf.shape)}, of which no dimension is divisible by the {parts} devices "
                    f"of mesh axis {axes!r}: pad it, take a mesh that divides it, or say by a tree of PartitionSpecs "
                    "which arrays to split (PartitionSpec() lies on every device)"
                )
            return PartitionSpec()
        at = max(fits)[1]
        return PartitionSpec(*[axes if i == at else None for i in range(at + 1)])

    def _checked(self, tree: PyTree, specs: PyTree, name: str) -> PyTree:
        return tree_map_with_path(
            lambda path, leaf, spec: self._sharding(leaf, spec, name + keystr(path)), tree, specs
        )

    def _sharding(self, leaf: Any, spec: PartitionSpec, where: str) -> NamedSharding:
        """Return the spec as a sharding. Raise if a dimension cannot be split evenly."""
        if len(spec) > leaf.ndim:
            raise ValueError(
                f"{where} has shape {tuple(leaf.shape)}, fewer dimensions than {spec}: shorten the PartitionSpec"
            )
        for i, (axes, size) in enumerate(zip(spec, leaf.shape, strict=False)):
            parts = 1 if axes is None else size_of(self.mesh, axes)
            if left := size % parts:
                what = "rows" if i == 0 else f"entries along dimension {i}"
                padded = f"pad to {size + parts - left}"
                if where.startswith("batch."):
                    remedy = (
                        f"let the loader leave its incomplete batch out (torch: drop_last=True), {padded}"
                    )
                elif where.startswith("data") or (i == 0 and leaf.ndim == 1):
                    remedy = f"leave {left} out, {padded}"
                else:
                    remedy = "name another dimension, or an axis of fewer devices"
                raise CannotBeSplit(
                    f"{where} has shape {tuple(leaf.shape)}, and its {size} {what} cannot be split evenly over the "
                    f"{parts} devices of mesh axis {axes!r}: {remedy}, or let it lie on every device (None or "
                    "PartitionSpec())"
                )
        return NamedSharding(self.mesh, spec)


def sharded(mesh: Mesh, *, data: Any = 0, x: Any = ROWS, y: Any = None, model_state: Any = None) -> Sharded:
    """Return the sharding of a run over a mesh of devices, for `mesh=` of `bl.RunOptions`.

        mesh = jax.make_mesh((8,), ("data",))
        bl.run(solver, x0, y0, data=data, steps=100, options=bl.RunOptions(mesh=mesh))  # data parallel
        fsdp = bl.sharded(mesh, y="data")  # y split too
        bl.run(solver, x0, y0, data=data, steps=100, options=bl.RunOptions(mesh=fsdp))

    x, y and model_state each take one of:

    * `None`: every device has the whole variable.
    * the name of a mesh axis: every array is split along its largest dimension that the axis divides (the last
      of equal ones). Small arrays without such a dimension are replicated.
    * a `PartitionSpec`, or a tree of them that is a prefix of the variable's tree: used exactly.

    Other arrays of a method (adjoint, momenta, running means) are split like the x or y whose shape they
    have. Counters are replicated. Every step keeps this sharding.

    Args:
        mesh: from `jax.make_mesh` or `jax.sharding.Mesh`, over the devices of all processes.
        data: the name of the mesh axis (or a tuple of several) over which the rows of the data are split.
            Default 0: the first axis. `None`: all rows on every device. With a loader in a run of several
            processes, each process's batches are its share of the rows.
        x: see above. Default "rows": arrays with a row for every row of the data are split with these rows,
            others are replicated.
        y: see above. By default it is replicated.
        model_state: see above. By default it is replicated.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f'mesh must be a jax.sharding.Mesh, not {shown(mesh)}: pass e.g. jax.make_mesh((8,), ("data",))'
        )
    if not mesh.axis_names or len(set(mesh.devices.flat)) != mesh.size:
        what = "has the same device twice" if mesh.axis_names else "has no axis"
        raise ValueError(f'mesh {what}: pass e.g. jax.make_mesh((jax.device_count(),), ("data",))')
    axes: Any = mesh.axis_names[0] if type(data) is int and data == 0 else data
    for name, rule in (("data", axes), ("x", x), ("y", y), ("model_state", model_state)):
        _check_rule(mesh, rule, name)
    return Sharded(auto(mesh), axes, x, y, model_state)


def as_sharded(mesh: Any) -> Sharded | None:
    """Return the value of `mesh=` as a `Sharded`, or `None`."""
    return mesh if mesh is None or isinstance(mesh, Sharded) else sharded(mesh)


def auto(mesh: Mesh) -> Mesh:
    """Return the same mesh with automatic sharding of results: objectives are written without a mesh."""
    return Mesh(mesh.devices, mesh.axis_names)


def size_of(mesh: Any, axes: Any) -> int:
    """Return the number of devices along one axis or several."""
    names = (axes,) if isinstance(axes, str) else tuple(axes)
    return math.prod(mesh.shape[name] for name in names)


def _check_rule(mesh: Mesh, rule: Any, name: str) -> None:
    names = (rule,) if isinstance(rule, str) else rule if _names(rule) else ()
    known = {*mesh.axis_names, ROWS} if name == "x" else set(mesh.axis_names)
    choices, first = ", ".join(map(repr, mesh.axis_names)), repr(mesh.axis_names[0])
    if missing := [each for each in names if each not in known]:
        raise ValueError(
            f"{name}={shown(rule)} names no axis of the mesh, {missing[0]!r}: choose from {choices}"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"{name}={shown(rule)} names an axis twice: leave one of them out")
    if rule is None or names:
        return
    if name == "data":
        raise TypeError(
            f"data must be an axis of the mesh, or a tuple of some, not {shown(rule)}: pass e.g. {first}"
        )
    specs = leaves_of(rule, name)
    if not specs or not all(isinstance(spec, PartitionSpec) for spec in specs):
        raise TypeError(
            f"{name} must be an axis of the mesh, a PartitionSpec, a tree of them, or None, not {shown(rule)}: pass "
            f"e.g. {name}={first}"
        )
    for spec in specs:
        for axes in spec:
            if not isinstance(axes, str | tuple | None):
                raise ValueError(f"{name} has {spec}: give every dimension axes of the mesh, or None")
            named = {axes} if isinstance(axes, str) else set(axes or ())
            if unknown := named - set(mesh.axis_names):
                raise ValueError(
                    f"{name} has {spec}, and the mesh has no axis {min(unknown)!r}: choose from {choices}"
                )


def _names(rule: Any) -> bool:
    """Return whether the rule names several mesh axes."""
    return isinstance(rule, tuple) and len(rule) > 0 and all(isinstance(each, str) for each in rule)


def _prefixed(rule: PyTree, tree: PyTree, name: str) -> PyTree:
    """Return a spec for every array, from a tree of specs that is a prefix of the variable's tree."""
    try:
        return jax.tree.broadcast(rule, tree)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"the tree of PartitionSpecs for {name} does not fit {name}: "
            + (_misfit(rule, tree) or str(error).splitlines()[0])
        ) from error


def _misfit(rule: PyTree, tree: PyTree) -> str:
    """Return a sentence with the first key that only one of two dicts has."""
    if not isinstance(rule, dict) or not isinstance(tree, dict):
        return ""
    if missing := [key for key in tree if key not in rule]:
        return f"it has nothing for {missing[0]!r}"
    if extra := [key for key in rule if key not in tree]:
        return f"there is no {extra[0]!r}"
    return next((f"in {key!r}, {found}" for key in rule if (found := _misfit(rule[key], tree[key]))), "")
