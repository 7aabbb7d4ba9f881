import jax
import pytest


@pytest.fixture(autouse=True)
def as_optax_wants_it():
    """Adam counts its steps in integers and multiplies them with floats."""
    with jax.numpy_dtype_promotion("standard"):
        yield
