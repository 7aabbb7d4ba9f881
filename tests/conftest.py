"""One climate for every test: x64, strict promotion, eight forced devices, annotations checked at run time."""

import jax
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

install_import_hook("bilevel", "beartype.beartype")  # before anything imports the package

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile(
    "bilevel", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bilevel")
