"""Models: logistic regression or one hidden layer, K at once, in well-conditioned coordinates.

Rows, columns and classes are padded with zeros to a few sizes: JAX compiles for every shape, which takes
seconds, and a fit takes less than one. Padding has weight zero and changes results only by rounding.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

ABSENT = -1e4  # the bias of a padding class: its probability and its gradients are exactly zero
MOST = 2048  # the most columns for which principal axes are computed


class Scale(NamedTuple):
    """Map a ↦ (a − center) axes, and the ridge penalty of each new column.

    It uses double precision, because a date in seconds has more digits than single precision.
    """

    center: np.ndarray
    axes: np.ndarray  # a matrix, or one factor for each column
    ridge: np.ndarray

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        moved = np.asarray(inputs, np.float64) - self.center
        return moved * self.axes if self.axes.ndim == 1 else moved @ self.axes


def scale_of(inputs: np.ndarray, counted: np.ndarray, ridge: float, turned: bool) -> Scale:
    """Return the scale to standardized columns, or, if `turned`, to principal axes divided by √(s + ρ).

    s is the variance along an axis. Along these axes the penalty ½ ρ ‖W‖² is ½ Σ_j ρ/(s_j + ρ) u_j². No
    curvature of the mean logistic loss exceeds ½ s/(s + ρ) + ρ/(s + ρ) ≤ 1 for any data, so gradient steps of
    size 1 descend fast. Means and variances have the weights of the loss: `counted` is the weight of each
    row, in total 1.
    """
    inputs = np.asarray(inputs, np.float64)
    center = counted @ inputs
    sd = np.sqrt(counted @ (inputs - center) ** 2)
    factors = 1 / np.where(np.ptp(inputs, axis=0) > 0, sd, np.inf)  # a constant column has no information
    if not turned:
        return Scale(center, factors, np.full(len(sd), ridge))
    if len(sd) > MOST:  # one factor: no variance along an axis exceeds the sum of the columns
        largest = float(len(sd))
        return Scale(center, factors / np.sqrt(largest + ridge), np.full(len(sd), ridge / (largest + ridge)))
    standard = (inputs - center) * factors
    s, axes = np.linalg.eigh((standard * counted[:, None]).T @ standard)
    s = np.maximum(s, 0)
    return Scale(center, factors[:, None] * axes / np.sqrt(s + ridge), ridge / (s + ridge))


def initial(
    d: int, columns: int, hidden: int | None, classes: int, depth: int, models: int, rng: np.random.Generator
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return layers (W, c) with the models as first axis, padded to `columns` and `depth`.

    Last layers and logistic models start at zero, hidden layers with variance 2/d (He), padding at zero.
    """
    zeros = lambda *shape: np.zeros((models, *shape), np.float32)
    last = zeros(depth)
    last[:, classes:] = ABSENT
    if hidden is None:
        return [(zeros(columns, depth), last)]
    first = zeros(columns, hidden)
    first[:, :d] = rng.normal(size=(models, d, hidden), scale=np.sqrt(2 / d))
    return [(first, zeros(hidden)), (zeros(hidden, depth), last)]


def logits(y: Any, inputs: Float[Array, "n d"]) -> Float[Array, "n c"]:
    """Return the logits of one model."""
    *before, (W, c) = y
    for V, b in before:
        inputs = jax.nn.relu(inputs @ V + b[None, :])
    return inputs @ W + c[None, :]


class Predictor(NamedTuple):
    """Map from inputs to probabilities, the mean of all models, in NumPy and double precision."""

    layers: list[tuple[np.ndarray, np.ndarray]]  # without padding
    scale: Scale

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        return np.exp(self.logs(inputs))

    def logs(self, inputs: np.ndarray) -> np.ndarray:
        """Return the logarithms of the probabilities."""
        *before, (W, c) = self.layers
        h = self.scale(inputs)
        for V, b in before:
            h = np.maximum(h @ V + b[:, None], 0)
        scores = h @ W + c[:, None]
        each = scores - np.logaddexp.reduce(scores, axis=2, keepdims=True)
        return np.logaddexp.reduce(each, axis=0) - np.log(len(W))


def predictor(y: Any, scale: Scale, d: int, classes: int) -> Predictor:
    *before, (W, c) = [(np.asarray(W, np.float64), np.asarray(c, np.float64)) for W, c in y]
    W, c = W[..., :classes], c[:, :classes]
    before = [(V[:, :d], b) for V, b in before]
    return Predictor([*before, (W if before else W[:, :d], c)], scale)


def bucket(count: int, least: int) -> int:
    """Return the padded size of `count`, at least `least`. At most an eighth of it is padding."""
    unit = max(least, 2 ** (max(count - 1, 1).bit_length() - 4))
    return -(-count // unit) * unit if count > least else least


def padded(array: np.ndarray, *sizes: int) -> np.ndarray:
    """Pad the first axes with zeros up to `sizes`."""
    room = [size - length for size, length in zip(sizes, array.shape, strict=False)]
    return np.pad(array, [(0, room[axis] if axis < len(room) else 0) for axis in range(array.ndim)])
