"""Comparison of one translated operation with torch: value, gradient and Hessian product."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from bilevel.torch.interpreter import call
from bilevel.torch.types import jax_type, to_jax

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
# Compilation takes most of the time.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
quick_jit = partial(jax.jit, compiler_options=QUICK)


def tensor(
    *shape: int, dtype: Any = torch.float64, seed: int = 0, low: float = -2.0, high: float = 2.0
) -> torch.Tensor:
    """Return random numbers between low and high; whole numbers or booleans if the type says so."""
    generator = torch.Generator().manual_seed(seed + 7 * len(shape) + sum(shape))
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not dtype.is_floating_point:
        return torch.randint(int(low), int(high) + 1, shape, generator=generator).to(dtype)
    return (low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)).to(dtype)


def check(
    op: str,
    *args: Any,
    reference: Callable[..., Any] | None = None,
    derivatives: int = 2,
    tolerance: float | None = None,
    **named: Any,
) -> None:
    """Assert that the translation of `op` agrees with torch at these arguments.

    Args:
        op: the name in the table, such as "aten.add.Tensor".
        *args: arguments of the operation; floating tensors are differentiated.
        reference: the same function in torch, if autograd does not know the operation itself.
        derivatives: 2 compares gradients and Hessian products, 1 only gradients, 0 only values.
        tolerance: the largest error relative to the largest entry.
        **named: keyword arguments of the operation.
    """
    function = reference or _operation(op)
    leaves, tree = jax.tree.flatten((args, named), is_leaf=lambda leaf: leaf is None)
    moving = [
        i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    dtypes = [leaves[i].dtype for i in moving]
    tolerance = tolerance or max([TOLERANCE[each] for each in dtypes], default=1e-9)
    out = _outputs(function(*args, **named))

    fixed = [_held(leaf) for leaf in leaves]

    def ours(*values: Any) -> list[Any]:
        held = list(fixed)
        for i, value in zip(moving, values, strict=True):
            held[i] = value
        positional, keywords = jax.tree.unflatten(tree, held)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return call(op, positional, keywords, out)

    def theirs(*values: torch.Tensor) -> list[torch.Tensor]:
        held = list(leaves)
        for i, value in zip(moving, values, strict=True):
            held[i] = value
        positional, keywords = jax.tree.unflatten(tree, held)
        return _outputs(function(*positional, **keywords))

    points = [to_jax(leaves[i]) for i in moving]
    expected = theirs(*[leaves[i] for i in moving])
    results = list(zip(quick_jit(lambda *values: ours(*values))(*points), expected, strict=True))
    for mine, theirs_ in results:
        if mine is None:  # a result that no graph uses
            continue
        assert mine.shape == tuple(theirs_.shape), op
        assert str(mine.dtype) == str(theirs_.dtype).removeprefix("torch."), op
        _close(mine, theirs_, tolerance, f"{op}: value")
    floating = [i for i, (mine, each) in enumerate(results) if mine is not None and each.is_floating_point()]
    if not derivatives or not moving or not floating or min(TOLERANCE[d] for d in dtypes) > 1e-5 + 1e-12:
        return
    weights = [tensor(*expected[i].shape, seed=100 + i, dtype=expected[i].dtype) for i in floating]
    directions = [tensor(*leaves[i].shape, seed=200 + i, dtype=leaves[i].dtype) for i in moving]

    def our_scalar(*values: Any) -> Any:
        found = ours(*values)
        return sum(jnp.sum(to_jax(w) * jnp.sin(found[i])) for i, w in zip(floating, weights, strict=True))

    variables = [leaves[i].detach().clone().requires_grad_(True) for i in moving]
    found = theirs(*variables)
    scalar = sum((w * found[i].sin()).sum() for i, w in zip(floating, weights, strict=True))
    first = _gradients(scalar, variables, create_graph=derivatives > 1)
    numbers = tuple(range(len(points)))
    gradient = jax.grad(our_scalar, numbers)
    gradients, products = tuple(points), tuple(to_jax(d) for d in directions)
    if derivatives > 1:  # one compilation for both
        gradients, products = quick_jit(lambda *both: jax.jvp(gradient, *both))(gradients, products)
    else:
        gradients = quick_jit(gradient)(*points)
    for mine, their in zip(gradients, first, strict=True):
        _close(mine, their, 10 * tolerance, f"{op}: gradient")
    if derivatives > 1:
        inner = sum((g * d).sum() for g, d in zip(first, directions, strict=True))
        second = _gradients(inner, variables)
        for mine, their in zip(products, second, strict=True):
            _close(mine, their, 100 * tolerance, f"{op}: Hessian product")


def _held(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return jax_type(leaf)
    return to_jax(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _operation(op: str) -> Callable[..., Any]:
    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _outputs(out: Any) -> list[Any]:
    return list(out) if isinstance(out, tuple | list) else [out]


def _gradients(scalar: Any, variables: list[torch.Tensor], create_graph: bool = False) -> list[torch.Tensor]:
    if not isinstance(scalar, torch.Tensor) or not scalar.requires_grad:
        return [torch.zeros_like(v) for v in variables]
    found = torch.autograd.grad(scalar, variables, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(v) if g is None else g for g, v in zip(found, variables, strict=True)]


def _close(mine: Any, theirs: torch.Tensor, tolerance: float, what: str) -> None:
    mine, theirs_ = np.asarray(mine, np.float64), theirs.to(torch.float64).numpy(force=True)
    finite = np.isfinite(theirs_)
    np.testing.assert_array_equal(mine[~finite], theirs_[~finite], err_msg=what)
    scale = max(1.0, float(np.max(np.abs(theirs_[finite]), initial=0.0)))
    np.testing.assert_allclose(mine[finite], theirs_[finite], rtol=0, atol=tolerance * scale, err_msg=what)
