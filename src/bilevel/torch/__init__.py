"""PyTorch modules in bilevel problems: `pip install "bilevel[torch]"`.

    front = bl.torch.front(model, inner=inner_loss, outer=outer_loss)
    solver = bl.soba(front.problem, inner=0.1, adjoint=0.1, outer=0.1)
    result = bl.run(solver, x0, **front.start, data=bl.loaders(inner=train, outer=valid), steps=1000)
    front.load(result)

The losses are functions of `(x, model, batch)` written in torch. The front exports them with `torch.export` and
evaluates the exported graphs with JAX operations.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    message = 'bilevel.torch needs PyTorch: pip install "bilevel[torch]"'
    raise ModuleNotFoundError(message, name="torch") from error

from bilevel.torch._front import Front, front
from bilevel.torch._table import register
from bilevel.torch.errors import ExportError

__all__ = ["ExportError", "Front", "front", "register"]
