"""One climate for every test: x64, strict promotion, eight forced devices, annotations checked at run time."""

import jax
import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

jaxtyping.install_import_hook("bilevel", "beartype.beartype")  # before anything imports the package

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile(
    "bilevel", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bilevel")


@pytest.fixture
def as_users_see_it():
    """Without the run-time type checks, which would refuse some bad input first, in words users never see."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
