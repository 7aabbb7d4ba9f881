"""Types and arrays of torch and JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from bilevel.torch._table.registry import canonical

TO_JAX: dict[torch.dtype, Any] = {
    torch.bool: jnp.bool_, torch.uint8: jnp.uint8, torch.int8: jnp.int8, torch.int16: jnp.int16,
    torch.int32: jnp.int32, torch.int64: jnp.int64, torch.float16: jnp.float16, torch.bfloat16: jnp.bfloat16,
    torch.float32: jnp.float32, torch.float64: jnp.float64, torch.complex64: jnp.complex64,
    torch.complex128: jnp.complex128,
}  # fmt: skip
TO_TORCH = {jnp.dtype(ours): theirs for theirs, ours in TO_JAX.items()}


def jax_type(dtype: torch.dtype) -> Any:
    """Return the type that JAX uses for a type of torch."""
    return canonical(TO_JAX[dtype])


def torch_type(dtype: Any) -> torch.dtype:
    """Return the type of torch for a type of JAX. Without x64 there is no int64, which torch needs for labels."""
    x64 = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return torch.int64 if dtype == jnp.int32 and not x64 else TO_TORCH[jnp.dtype(dtype)]


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Return a copy of the tensor: JAX may overwrite its arrays."""
    tensor = tensor.detach().contiguous()
    if tensor.device.type == "cuda":
        return jnp.copy(jnp.from_dlpack(tensor))
    if tensor.dtype == torch.bfloat16:  # which NumPy lacks
        return jnp.copy(jnp.from_dlpack(tensor.cpu()))
    return jnp.array(tensor.cpu().numpy(), dtype=jax_type(tensor.dtype))


def to_torch(array: Any) -> torch.Tensor:
    """Return the array as a tensor, which shares its memory where possible."""
    if isinstance(array, jax.Array) and len(array.devices()) == 1:
        (device,) = array.devices()
        if device.platform == "cpu" or torch.cuda.is_available():
            return torch.from_dlpack(array)
    return torch.as_tensor(np.array(array))
