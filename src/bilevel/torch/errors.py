"""Errors of the export, with the line of the user's code that caused them."""

import re
import traceback
from collections.abc import Iterable
from pathlib import Path

import torch

HIDDEN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))  # code that users did not write
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n\s*(?P<source>[^\n]*)')

UNKNOWN = (
    "is not in the table of bilevel.torch. Write it in jax.numpy and register it: "
    'bl.torch.register("{name}")(function), where the function takes JAX arrays in the order of the operation'
)
BRANCH = (
    "the loss or the module decides by the value of a tensor (if, while, float(), .item()), which an exported graph "
    "cannot: write it with torch.where"
)
SHAPE = "the shape of a tensor depends on the data: use torch.where instead of indexing by a mask or torch.nonzero"
FAILED = (
    "torch.export refuses the {level} loss: {error}{line}. A loss can use operations of torch, but neither NumPy nor "
    "`.data`"
)
OWN_FUNCTION = (
    "{name} is a torch.autograd.Function, whose own backward pass torch.export drops: write it with torch operations, "
    "or as a torch.library.custom_op and register that with bl.torch.register"
)
GRADIENT = (
    "the loss or the module calls torch.autograd.grad without create_graph=True, whose result torch takes for a "
    "constant: pass create_graph=True, and .detach() the result if it is meant as a constant"
)
WHOLE_GRADIENT = (
    "torch.autograd.grad cannot be followed through operations that save their results, such as tanh or "
    "cross_entropy: write this derivative with torch.func.jvp"
)
HOOK = "the loss or the module registers a hook on a tensor, which an exported graph drops: change the tensor itself"
NARROW = (
    "the loss or the module enters torch.no_grad inside torch.autocast, where torch.export forgets it: "
    "enter no_grad first, or use .detach()"
)
IN_PLACE = (
    "the loss or the module changes a tensor in place under torch.no_grad or through .detach(), which hides the "
    "change from its derivative: make a new tensor instead"
)
OUTSIDE = (
    "the {level} loss uses the tensor {name!r} from outside, which requires a gradient: read x and the parameters "
    "from the arguments of the loss, or detach() the tensor if it is a constant"
)
TWICE = (
    "torch.export refuses modules whose buffers have two names and change, here {first!r} and {second!r}: use two "
    "modules, or evaluation mode"
)
PARAMETER = (
    "the {level} loss uses the parameter {name!r} of the module from outside: "
    "read it from the argument `model` of the loss instead"
)
WRITTEN = (
    "the {level} loss changes the parameter {name!r} in place: "
    "return a loss, and let the solver change the parameter instead"
)


class ExportError(ValueError):
    """A loss or a module cannot be exported. The message has the line of the code."""


def user_line(frames: Iterable[tuple[str, int, str]]) -> str:
    """Return `file:line: source` of the last frame outside torch and this library, or an empty string."""
    own = [each for each in frames if not each[0].startswith(HIDDEN) and Path(each[0]).is_absolute()]
    return f' (in {own[-1][0]}:{own[-1][1]}: "{own[-1][2].strip()}")' if own else ""


def line_of_node(stack_trace: str | None) -> str:
    """Return the user's line from the text of a node's stack trace."""
    found = FRAME.finditer(stack_trace or "")
    return user_line((each["file"], int(each["line"]), each["source"]) for each in found)


def line_of_error(error: BaseException) -> str:
    """Return the user's line from the traceback of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    return user_line((each.filename, each.lineno or 0, each.line or "") for each in frames)


def is_of_user(error: BaseException) -> bool:
    """Return whether the user's own code raised the error, and not torch."""
    frames = traceback.extract_tb(error.__traceback__)
    return not frames[-1].filename.startswith(HIDDEN)
