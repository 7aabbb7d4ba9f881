"""torch during an export: errors in one line, and parts that an exported graph cannot have."""

import contextlib
import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from bilevel.torch import errors
from bilevel.torch.errors import ExportError

ONE_AT_A_TIME = threading.Lock()


@contextlib.contextmanager
def guarded(level: str, model: torch.nn.Module) -> Iterator[None]:
    """Export in this context: one thread at a time, quietly, with explained errors."""
    with ONE_AT_A_TIME, _explained(level, _twice(model)), _quiet(), _adapted(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _adapted() -> Iterator[None]:
    """Replace two parts of torch that cannot be exported, or only slowly."""
    from torch._decomp import decompositions

    batch_norm, recurrent = _BatchNorm.forward, decompositions._rnn_helper

    def average(self: Any, a: torch.Tensor) -> torch.Tensor:
        """Evaluate batch norm. With `momentum=None` torch reads its counter as a number, which a graph cannot."""
        if self.momentum is not None or self.running_mean is None or not self.training:
            return batch_norm(self, a)
        self._check_input_dim(a)
        self.num_batches_tracked.add_(1)
        seen, axes = a.detach().to(self.running_mean.dtype), [0, *range(2, a.ndim)]
        for old, new in ((self.running_mean, seen.mean(axes)), (self.running_var, seen.var(axes))):
            old.add_((new - old) / self.num_batches_tracked)
        return torch.nn.functional.batch_norm(a, None, None, self.weight, self.bias, True, 0.0, self.eps)

    def shapes(a: torch.Tensor, hidden: Any, *others: Any) -> Any:
        """Return tensors with the shapes of a recurrent layer's results: torch would go through all times."""
        if a.ndim == 2:  # a packed sequence, which the table does not have as a whole
            return recurrent(a, hidden, *others)
        *_, bidirectional, batch_first, _ = others
        first, times = hidden[0], a.shape[int(batch_first)]
        h = first[0] if isinstance(first, tuple) else first  # an LSTM has a pair
        out = h.repeat(times, 1, 1 + bidirectional)
        return (out.transpose(0, 1) if batch_first else out), list(hidden)

    with (
        mock.patch.object(_BatchNorm, "forward", average),
        mock.patch.object(decompositions, "_rnn_helper", shapes),
    ):
        yield


def _twice(model: torch.nn.Module) -> list[str]:
    """Return two names of one buffer of a module in training mode, or an empty list."""
    names: dict[int, str] = {}
    for name, each in model.named_buffers(remove_duplicate=False) if model.training else ():
        if id(each) in names:
            return [names[id(each)], name]
        names[id(each)] = name
    return []


@contextlib.contextmanager
def _explained(level: str, twice: list[str]) -> Iterator[None]:
    """Raise torch's errors about the export in one line, with the user's line. Others are the user's."""
    thread, regions, whole = threading.get_ident(), [0], [False]

    def replaced(place: Any, name: str, now: Callable[..., Any]) -> Any:
        """Replace a method in this thread."""
        before = getattr(place, name)
        bound = isinstance(vars(place).get(name), classmethod)

        def call(*args: Any, **named: Any) -> Any:
            if threading.get_ident() != thread:
                return (before.__func__ if bound else before)(*args, **named)
            return now(before, *args, **named)

        return mock.patch.object(place, name, classmethod(call) if bound else call)

    def refuse(before: Any, cls: type, *args: Any, **named: Any) -> Any:
        raise ExportError(errors.OWN_FUNCTION.format(name=cls.__name__))

    def differentiate(before: Any, *args: Any, create_graph: bool = False, **named: Any) -> Any:
        if not create_graph:
            raise ExportError(errors.GRADIENT)
        whole[0] = True
        return before(*args, create_graph=True, **named)

    def hook(before: Any, *args: Any, **named: Any) -> Any:
        raise ExportError(errors.HOOK)

    def enter_autocast(before: Any, self: Any) -> Any:
        regions.append(regions[-1] + 1 if self._enabled else 0)
        return before(self)

    def leave_autocast(before: Any, *args: Any) -> Any:
        regions.pop()
        return before(*args)

    def enter_no_grad(before: Any, self: Any) -> Any:
        if regions[-1]:
            raise ExportError(errors.NARROW)
        return before(self)

    try:
        with (
            replaced(torch.autograd.Function, "apply", refuse),
            replaced(torch.autograd, "grad", differentiate),
            replaced(torch.Tensor, "register_hook", hook),
            replaced(torch.autocast, "__enter__", enter_autocast),
            replaced(torch.autocast, "__exit__", leave_autocast),
            replaced(torch.no_grad, "__enter__", enter_no_grad),
        ):
            yield
    except ExportError as error:
        raise ExportError(str(error) + errors.line_of_error(error)) from None
    except Exception as error:
        from torch.fx.experimental.symbolic_shapes import (
            GuardOnDataDependentSymNode,
        )  # it changes warning filters

        if isinstance(error, GuardOnDataDependentSymNode):
            raise ExportError(errors.BRANCH + errors.line_of_error(error)) from None
        if errors.is_of_user(error):
            raise
        if twice:
            raise ExportError(errors.TWICE.format(first=twice[0], second=twice[1])) from error
        first = errors.WHOLE_GRADIENT if whole[0] else str(error).strip().partition("\n")[0].rstrip(".")
        line = errors.line_of_error(error)
        raise ExportError(errors.FAILED.format(level=level, error=first, line=line)) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide torch's own reports of an export, such as a dump of the graph."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)
