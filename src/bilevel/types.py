"""Types of annotations."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array, Float, Shaped

PyTree = Any  # of arrays
Scalar = Float[Array, ""]
Number = float | int | np.number | np.ndarray | jax.Array  # the arrays of rank 0, possibly traced
StepSize = Number | optax.GradientTransformation  # a number is plain gradient descent
Schedule = Callable[[Any], Any]  # from the step number
Metrics = dict[str, Shaped[Array, ""]]
