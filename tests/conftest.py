"""Configure every test: x64, strict promotion, eight forced devices, annotations checked at run time."""

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

# This process and its children compile each program once per invocation. Each process has its own folder, because JAX
# does not write files atomically, and another process might read half of one.
COMPILED = Path(os.environ["BILEVEL_TESTS_COMPILED"]) / os.environ.get("PYTEST_XDIST_WORKER", "main")
for name, value in {
    "jax_compilation_cache_dir": str(COMPILED),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)

# Most of the time goes into compiling programs that run once and briefly, so compile them without optimization. This
# changes only machine code: operations and memory are counted earlier. The code of the pages, which runs in separate
# processes, is compiled in the same way.
flags = os.environ.get("XLA_FLAGS")
quickly = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if jax.__version_info__ < (0, 11):  # later versions reject these flags, which halve the remaining time
    quickly += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = os.environ["BILEVEL_TESTS_XLA_FLAGS"] = f"{flags or ''} {quickly}".strip()
jax.jit(lambda: 0)()  # JAX reads the flags at the first compilation
if flags is None:
    del os.environ["XLA_FLAGS"]
else:
    os.environ["XLA_FLAGS"] = flags

# Processes that a shell starts in the background ignore Ctrl-C, and so would all children of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

gc.set_threshold(
    50_000, 10, 10
)  # with Python's default of 700, a sixth of the time goes into garbage collection

settings.register_profile(
    "bilevel", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bilevel")

# Linux allows 65,530 memory maps per process. Beyond this number, compiled code does not fit and the process crashes.
MOST_MAPS = 20_000


@pytest.fixture(scope="module", autouse=True)
def _room_for_compiled_code():
    """Clear compiled programs: a worker compiles about ten thousand, each with separate memory maps."""
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
    """Return a solver of `q`. The problem keeps its program, so each module compiles it once."""
    import bilevel as bl

    return bl.aid(q.problem, inner=1 / q.L, adjoint=1 / q.L, outer=0.1)


@pytest.fixture
def collector():
    """Return the garbage collector, which then skips older objects: looking at all of them takes a second."""
    gc.freeze()
    yield gc
    gc.unfreeze()


@pytest.fixture
def as_users_see_it():
    """Disable the run-time type checks, which would reject some bad input earlier and with other messages."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def _figures_are_closed():
    """Close all figures: pyplot keeps them, and warns at the twenty-first."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")
