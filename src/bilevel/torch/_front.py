"""The front of a torch module: its losses as a `bl.Problem`, its parameters as arrays."""

import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import torch

from bilevel.arrays import as_arrays as jax_arrays
from bilevel.batch import Batch
from bilevel.callables import takes
from bilevel.loop.data.loaders import as_dicts
from bilevel.problem import Problem
from bilevel.readings import Reader, Reading
from bilevel.torch.export import Graph, export
from bilevel.torch.interpreter import evaluate
from bilevel.torch.state import Tensors, as_arrays, check_tensors, describe
from bilevel.words import shown

MODES = ("train", "eval", None)
MOST_GRAPHS = 32  # per level; batches of other shapes and types need other graphs


class Front:
    """A torch module in a bilevel problem; see `front`."""

    def __init__(self, problem: Problem, model: Tensors, meta: Tensors | None, keeps_state: bool):
        self.problem = problem
        self._model, self._meta, self._keeps_state = model, meta, keeps_state

    @property
    def start(self) -> dict[str, Any]:
        """Return y0 and model_state for `bl.run`: copies of the module's present values."""
        for tensors in (self._model, self._meta):
            if tensors is not None:
                tensors.check_unchanged()
        return {"y0": as_arrays(self._model.trained), "model_state": self._state()}

    @property
    def x0(self) -> dict[str, jax.Array]:
        """Return the parameters of the module given as x."""
        if self._meta is None:
            raise AttributeError("x0 is known only if x is a module: call front(model, x=module, ...)")
        return as_arrays(self._meta.trained)

    def load(self, result: Any) -> None:
        """Write the parameters and buffers of a result of `bl.run` into the module, and x if it is a module."""
        if getattr(result, "y", None) is None:
            raise TypeError(
                f"load takes a result of bl.run, a lane of a sweep or a Best hook, not {type(result).__name__}"
            )
        new: list[tuple[Tensors, Any]] = [(self._model, result.y)]
        if self._meta is not None:
            new.append((self._meta, result.x))
        for name, array in (result.model_state or {}).items():
            owner, _, rest = name.partition(".")
            tensors = self._meta if owner == "x" and self._meta is not None else self._model
            new.append((tensors, {rest: array}))
        for tensors, arrays in new:
            tensors.check_unchanged()
            tensors.check_fit(arrays)
        for tensors, arrays in new:
            tensors.write(arrays)

    def _state(self) -> dict[str, jax.Array] | None:
        return as_arrays(_others(self._model, self._meta)) if self._keeps_state else None


def front(
    model: torch.nn.Module,
    *,
    inner: Callable[..., Any],
    outer: Callable[..., Any],
    x: Any = None,
    example: Batch | None = None,
    inner_mode: str | None = "train",
    outer_mode: str | None = "eval",
) -> Front:
    """Return the bilevel problem of a torch module, with its parameters as y.

        front = bl.torch.front(model, inner=inner_loss, outer=outer_loss)
        solver = bl.soba(front.problem, inner=0.1, adjoint=0.1, outer=0.1)
        result = bl.run(solver, x0, **front.start, data=bl.loaders(inner=train, outer=valid), steps=1000)
        front.load(result)

    Args:
        model: the module to train. Parameters that do not require gradients stay as they are. The module does not
            change until `load`.
        inner: the inner loss, a function of `(x, model, batch)` or `(x, model)` in torch. It returns a tensor, or a
            tensor and a dict of metrics.
        outer: the outer loss, likewise.
        x: a second module, if x is one: the losses receive it as x, and `front.x0` has its parameters. With
            `example`, also tensors with the shapes of x.
        example: a `bl.Batch` with one batch per level. With it, all errors of the export are raised now, and not at the
            first call of `bl.run`; and keys and state are used only if a loss needs them.
        inner_mode: "train" or "eval", the mode of the module in the inner loss. None leaves the mode of every part.
        outer_mode: the same for the outer loss.

    Raises:
        ExportError: torch cannot export a loss, or the table lacks one of its operations.
    """
    _check(model, inner, outer, inner_mode, outer_mode)
    mine, meta = Tensors(model), Tensors(x) if isinstance(x, torch.nn.Module) else None
    every = mine.trained | _others(mine, meta) | (meta.trained if meta else {})
    check_tensors(every)
    levels = {
        level: Level(level, loss, mine, meta, mode)
        for level, loss, mode in (("inner", inner, inner_mode), ("outer", outer, outer_mode))
    }
    keeps_state = bool(_others(mine, meta))
    if example is not None:
        used = [level.try_out(x, getattr(example, name)) for name, level in levels.items()]
        for level, graph in zip(levels.values(), used, strict=True):
            level.wants = {"key"} if graph.random else set()
    for level in levels.values():
        level.wants |= {"state"} if keeps_state else set()
    return Front(Problem(inner=levels["inner"], outer=levels["outer"]), mine, meta, keeps_state)


class Level(Reader):
    """One loss as an objective of `(x, y, batch)` in JAX."""

    def __init__(self, level: str, loss: Callable[..., Any], model: Tensors, meta: Tensors | None, mode: Any):
        self.level, self.loss, self.wants = level, loss, {"key"}
        self.names = {f"model.{name}": f"model.{first}" for name, first in model.names.items()}
        self.modules: dict[str, torch.nn.Module] = {"model": model.copy(mode)}
        self.trained = {"model": set(model.trained)}
        if meta is not None:
            self.trained["x"] = set(meta.trained)
            self.modules["x"] = meta.copy(mode)
            self.names |= {f"x.{name}": f"x.{first}" for name, first in meta.names.items()}
        # The copies never change, so that these words describe them for other processes too.
        self.about = [describe(each) for each in self.modules.values()]
        self.device = next((each.device for each in model.trained.values()), torch.device("cpu"))
        self._graphs: OrderedDict[Any, tuple[Reading, Graph]] = OrderedDict()

    @property
    def __signature__(self) -> inspect.Signature:
        kinds = inspect.Parameter
        batch = kinds("batch", kinds.POSITIONAL_OR_KEYWORD, default=None)
        # The key is asked for and not needed, as far as known before the export.
        default = {"key": None, "state": kinds.empty}
        named = [kinds(name, kinds.KEYWORD_ONLY, default=default[name]) for name in sorted(self.wants)]
        return inspect.Signature(
            [kinds("x", kinds.POSITIONAL_ONLY), kinds("y", kinds.POSITIONAL_ONLY), batch, *named]
        )

    def __call__(self, x: Any, y: Any, batch: Any = None, *, key: Any = None, state: Any = None) -> Any:
        meta = "x" in self.modules
        self._check_arguments(x, y)
        tensors = {f"model.{name}": value for name, value in y.items()} | dict(state or {})
        if meta:
            tensors |= {f"x.{name}": value for name, value in x.items()}
        graph = self.graph(None if meta else x, batch)
        leaves = jax.tree.leaves((None if meta else x, batch))
        every = {name: tensors[first] for name, first in self.names.items()}
        if graph.random and key is None:
            raise ValueError(
                f"the {self.level} loss draws random numbers, but there is no key: "
                "pass bl.Batch(..., key=jax.random.key(0))"
            )
        (loss, *metrics), written = evaluate(graph, leaves, every, key)
        named = dict(zip(graph.metrics, metrics, strict=True))
        if self.level == "inner" and "state" in self.wants:
            return loss, named, dict(state) | {self.names[name]: value for name, value in written.items()}
        return (loss, named) if named else loss

    def _check_arguments(self, x: Any, y: Any) -> None:
        if not isinstance(y, dict) or set(y) != self.trained["model"]:
            raise TypeError(
                "y must be a dict of the module's trainable parameters by name: pass **front.start to bl.run, or "
                'front.start["y0"]'
            )
        if "x" in self.modules and (not isinstance(x, dict) or set(x) != self.trained["x"]):
            raise TypeError(
                "x must be a dict of the second module's trainable parameters by name: pass front.x0"
            )

    def graph(self, x: Any, batch: Any) -> Graph:
        """Return the exported loss for these shapes and types; export it if it is new or reads other values."""
        leaves, tree = jax.tree.flatten((x, batch))
        shapes = tree, tuple((each.shape, str(each.dtype)) for each in leaves)
        reading, graph = self._graphs.pop(shapes, (None, None))
        if reading is None or graph is None or not (reading.is_current(self) or reading == Reading(self)):
            graph = export(self.modules, self.loss, self.level, x, batch, self.device)
            reading = Reading(self)  # after the export, which may load and replace parts of torch
        self._graphs[shapes] = reading, graph
        while len(self._graphs) > MOST_GRAPHS:
            self._graphs.popitem(last=False)
        return graph

    def try_out(self, x: Any, batch: Any) -> Graph:
        """Export the loss for an example of its arguments."""
        x = None if "x" in self.modules else jax_arrays(x, "x")
        return self.graph(x, jax_arrays(as_dicts(batch), f"example.{self.level}"))

    def reads(self) -> Any:
        """Return the values that the objective depends on."""
        return self.loss, self.about


def _others(model: Tensors, meta: Tensors | None) -> dict[str, torch.Tensor]:
    found = {f"model.{name}": tensor for name, tensor in model.others.items()}
    return found | ({f"x.{name}": tensor for name, tensor in meta.others.items()} if meta else {})


def _check(model: Any, inner: Any, outer: Any, inner_mode: Any, outer_mode: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, not {type(model).__name__}: pass the module itself"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(
            "the module has no parameter that requires a gradient, so there is no y: unfreeze one"
        )
    for name, loss in (("inner", inner), ("outer", outer)):
        if not callable(loss):
            raise TypeError(f"{name} must be a function (x, model, batch), not {type(loss).__name__}")
        if not takes(loss, 3) and not takes(loss, 2):
            raise TypeError(
                f"{name} must take (x, model, batch), or (x, model) without data, but {shown(loss)} does not"
            )
    for name, mode in (("inner_mode", inner_mode), ("outer_mode", outer_mode)):
        if mode not in MODES:
            raise ValueError(f'{name} must be "train", "eval" or None, not {mode!r}')
