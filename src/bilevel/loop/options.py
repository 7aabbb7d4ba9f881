"""Options of a run that are rarely used."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from bilevel.checks import check_choice, check_count, check_flag

SNAPSHOTS = ("auto", "device", "host", "off")
MINUTE = timedelta(minutes=1)
ON_DIVERGENCE = ("stop", "halve")


@dataclass(frozen=True)
class RunOptions:
    """Options of `bl.run` that are rarely used: `bl.run(..., options=bl.RunOptions(every=100))`.

    Args:
        every: chunks end at the multiples of this number of steps, where hooks see the run. By default a
            chunk takes about a quarter of a second.
        thin: keep only the rows of steps 0, thin, 2·thin, … and the last one in the trace, for very long
            runs. Its column "step" has their numbers. Hooks still see every row.
        snapshots: the state to return to when a run breaks: "device" (a second copy of the state), "host" (a
            copy in the host's memory, buffers donated), "off" (nothing, buffers donated), or "auto", by size.
        on_divergence: "stop" with the last finite state; or "halve": return to a good state and continue with
            half the step sizes, at most ten times. `result.halvings` lists them. With `every`, a resumed run
            returns to the same states as an unbroken one.
        prefetch: the number of steps whose batches a thread reads ahead from a loader. By default two, once
            the loader takes more than a millisecond; 0: none, for loaders that must stay in the caller's
            thread.
        offload: "outer": the memory of the outer rule stays on the host and is on the device only for its
            update, for a large x.
        mesh: devices to run on, as a `jax.sharding.Mesh`: the rows of the data are split over its first axis,
            arrays of x with a row for each of these likewise, and everything else is on every device; or the
            result of `bl.sharded`. By default x0, y0 and data that are on several devices stay there.
        probe: `(state, info) -> dict of numbers`, called after every chunk, with `model_state=` too if it has
            a parameter of that name; short for `bl.hooks.Probe`. Hooks can watch its numbers:
            `bl.hooks.Best("name")`.
        diagnose: examine the run a few times, at a few per cent of its cost, and report in `result.diagnosis`
            whether a step size, the adjoint or y's lag is a problem; short for `bl.hooks.Diagnose`.
        save_every: how often `checkpoint=` saves, as a number of steps or a `datetime.timedelta`; by default
            about once a minute.
    """

    every: int | None = None
    thin: int | None = None
    snapshots: str = "auto"
    on_divergence: str = "stop"
    prefetch: int | None = None
    offload: str | None = None
    mesh: Any = None
    probe: Callable[..., dict[str, Any] | None] | None = None
    diagnose: bool = False
    save_every: int | timedelta | None = None

    def __post_init__(self) -> None:
        for name in ("every", "thin"):
            if (count := getattr(self, name)) is not None:
                check_count(count, name)
        check_choice(self.snapshots, "snapshots", SNAPSHOTS)
        check_choice(self.on_divergence, "on_divergence", ON_DIVERGENCE)
        check_flag(self.diagnose, "diagnose")
        if self.prefetch is not None:
            check_count(self.prefetch, "prefetch", least=0, most=1000, such_as=2)
        if self.save_every is not None:
            rhythm(self.save_every)
        if self.probe is not None:
            from bilevel.loop.hooks.probe import check_probe

            check_probe(self.probe)
        if self.offload is not None:
            from bilevel.loop.devices.offload import check_offload

            check_offload(self.offload)
        if self.mesh is not None:
            from bilevel.loop.devices.mesh_spec import as_sharded

            object.__setattr__(self, "mesh", as_sharded(self.mesh))

    @property
    def halves(self) -> bool:
        return self.on_divergence == "halve"


DEFAULT = RunOptions()
EARLIER = {"replay": "snapshots"} | {field.name: field.name for field in fields(RunOptions)}


def with_earlier(options: RunOptions, given: dict[str, Any]) -> RunOptions:
    """Return the options with those that were keywords of `bl.run` in earlier releases; warn about these."""
    if unknown := [name for name in given if name not in EARLIER]:
        names = ", ".join(field.name for field in fields(RunOptions))
        raise TypeError(
            f"bl.run() got an unexpected keyword argument {unknown[0]!r}: see help(bl.run) for its arguments; rarely "
            f"used ones are in options=bl.RunOptions(...), which takes {names}"
        )
    now = ", ".join(f"{EARLIER[name]}=..." for name in given)
    warnings.warn(
        f"bl.run({', '.join(f'{name}=...' for name in given)}) is deprecated: pass options=bl.RunOptions({now}); the "
        "next release will refuse it",
        DeprecationWarning,
        stacklevel=3,
    )
    return replace(options, **{EARLIER[name]: value for name, value in given.items()})


def rhythm(save_every: Any) -> tuple[int | None, float]:
    """Return the steps between two checkpoints, or the seconds."""
    if save_every is None:
        return None, MINUTE.total_seconds()
    if isinstance(save_every, timedelta):
        if save_every <= timedelta(0):
            raise ValueError(
                f"save_every must be a positive time, not {save_every!r}: pass e.g. timedelta(minutes=5)"
            )
        return None, save_every.total_seconds()
    return check_count(save_every, "save_every"), 0.0
