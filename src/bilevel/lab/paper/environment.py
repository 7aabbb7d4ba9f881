"""Libraries and the machine that results were computed with."""

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("bilevel", "jax", "jaxlib", "numpy", "optax", "matplotlib")


def environment() -> dict[str, str]:
    import jax

    libraries = [f"{name} {_version(name)}" for name in LIBRARIES]
    return {
        "versions": ", ".join([f"Python {platform.python_version()}", *libraries]),
        "processor": f"{_processor()}, {_cores()} core{'s' * (_cores() > 1)}",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "JAX devices": ", ".join(str(device) for device in jax.devices()),
    }


def machine() -> str:
    """Return the name of the accelerator, or of the processor if there is none."""
    import jax

    device = jax.devices()[0].device_kind
    return environment()["processor"] if device == "cpu" else device


def _version(name: str) -> str:
    from bilevel import __version__

    return __version__ if name == "bilevel" else version(name)  # bilevel may run uninstalled


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):
        return "unknown"
