"""One climate for every test: x64, strict promotion, eight forced devices, annotations checked at run time."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import jax
import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

import annotations

annotations.check("bilevel")  # before anything imports the package

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["BILEVEL_TESTS_COMPILED"] = tempfile.mkdtemp(prefix="bilevel-tests-")
    atexit.register(shutil.rmtree, os.environ["BILEVEL_TESTS_COMPILED"], ignore_errors=True)

# What this process or a child of it has compiled in this invocation, neither compiles again. One folder a process: JAX
# writes no file in one piece, so that another process might read half of it.
COMPILED = Path(os.environ["BILEVEL_TESTS_COMPILED"]) / os.environ.get("PYTEST_XDIST_WORKER", "main")
for name, value in {
    "jax_compilation_cache_dir": str(COMPILED),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)

# Nearly all of the time goes into compiling programs that run once, for a moment, so they are not made fast. Only
# machine code is concerned; operations and memory are counted before. The pages' code, which the tests start in
# processes of its own, is compiled so too.
flags = os.environ.get("XLA_FLAGS")
quickly = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if jax.__version_info__ < (0, 11):  # later ones do not know it; halves what is left
    quickly += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = os.environ["BILEVEL_TESTS_XLA_FLAGS"] = f"{flags or ''} {quickly}".strip()
jax.jit(lambda: 0)()  # they are read at the first compilation
if flags is None:
    del os.environ["XLA_FLAGS"]
else:
    os.environ["XLA_FLAGS"] = flags

# A shell has what it starts in the background ignore Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

gc.set_threshold(50_000, 10, 10)  # at Python's own 700, a sixth of the time goes into looking for garbage

settings.register_profile(
    "bilevel", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bilevel")

# Of the 65,530 that Linux gives a process: beyond them compiled code has no place, and the process crashes.
MOST_MAPS = 20_000


@pytest.fixture(scope="module", autouse=True)
def _room_for_compiled_code():
    """A worker compiles some ten thousand programs in its life, each with pieces of memory of its own."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="module")
def q():
    """Return a small problem whose solution is known."""
    import bilevel as bl  # after `annotations.check`

    return bl.problems.quadratic(kappa=4.0)


@pytest.fixture(scope="module")
def aid(q):
    """Return a solver of `q`. The problem keeps its program, so one module compiles it once."""
    import bilevel as bl

    return bl.aid(q.problem, inner=1 / q.L, adjoint=1 / q.L, outer=0.1)


@pytest.fixture
def collector():
    """Looks at what is made from here on. At all that a worker has made, it would look for a second every time."""
    gc.freeze()
    yield gc
    gc.unfreeze()


@pytest.fixture
def as_users_see_it():
    """Without the run-time type checks, which would refuse some bad input first, in words users never see."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def _figures_are_closed():
    """pyplot keeps what it opens, and warns of the twenty-first."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")
