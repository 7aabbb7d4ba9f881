"""Checks that all processes of a run were given the same, before the run begins."""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.loop.devices.processes import brief
from bilevel.loop.errors import Failure, caught
from bilevel.loop.plan import Plan
from bilevel.loop.policies import Alone
from bilevel.loop.state import fingerprint

Outline = list[Any]  # a text, and two digests: of structure, shapes and types; of values


def check_alike(team: Alone, given: dict[str, Any]) -> None:
    """Raise in all processes if one of them was given something else."""
    if not team.several:
        return
    told = team.all({name: _outline(value) for name, value in given.items()})
    for number, theirs in enumerate(told):
        for name, mine in told[0].items():
            if theirs[name] == mine:
                continue
            (here, shape, _), (there, other, _) = mine, theirs[name]
            how = (
                f"{here} in process 0 and {there} in process {number}"
                if here != there
                else f"other {'values' if shape == other else 'parts'} in process {number} than in process 0"
            )
            raise ValueError(
                f"the processes of a run must be given the same, but {name} differs: {how}. Pass the whole, the same "
                "in every process, or arrays that lie on the devices of all"
            )


def check_request(request: Any, steps: int, start: Any, saves: bool, resume: str) -> None:
    """Raise in all processes if one was asked for another run: solver, numbers and choices."""
    solver, options = request.solver, request.options
    chosen = dict(steps=steps, seed=int(start.seed), warmup=start.warmup)
    names = ("every", "thin", "snapshots", "on_divergence", "offload")
    chosen |= {name: getattr(options, name) for name in names} | {"checkpoint=": saves, "resume=": resume}
    made = {f"its {what}": words for what, words in fingerprint(solver, None, None, None, None)[:3]}
    named = jax.tree_util.tree_leaves_with_path(solver)
    numbers = {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in named}
    shown = {name: float(leaf) for name, leaf in numbers.items() if np.ndim(leaf) == 0}
    check_alike(request.team, chosen | made | {"the solver": str(shown), "the solver's arrays": numbers})


def have_data(plan: Plan) -> tuple[bool, Failure | None]:
    """Return whether all processes have data of the same shapes for a step, and the loader's error."""
    given, failure = caught("the loader", plan.source.peek, interruptible=True)
    asked = failure is not None and failure.is_interrupt
    failure = None if asked else plan.source.blamed(failure)
    raised = None if failure is None else f"{failure.what} raised {brief(failure.error)}"
    told = plan.team.all([raised, asked, None if given is None else _shapes(given)])
    for number, (theirs, stops, _) in enumerate(told):
        if stops:
            plan.interrupts.ask()
        if theirs is not None and failure is None:
            failure = Failure(f"process {number}", RuntimeError(theirs))
    ready = failure is None and given is not None and all(shapes is not None for *_, shapes in told)
    for number, (*_, shapes) in enumerate(told):
        if ready and shapes != told[0][2]:
            return False, Failure(
                "the loader",
                ValueError(
                    f"the batches of a step must have as many rows in every process, but with those of all there would "
                    f"be {told[0][2][0]} by the batch of process 0 and {shapes[0]} by that of process {number}"
                ),
            )
    return ready, failure


def _outline(value: Any) -> Outline:
    if isinstance(value, str | int | float | None):
        words = str(value)
        return [words if len(words) <= 160 else words[:157] + "...", zlib.crc32(words.encode()), 0]
    return [*_shapes(value), zlib.crc32(b"".join(_digest(leaf) for leaf in jax.tree.leaves(value)))]


def _shapes(tree: Any) -> list[Any]:
    shown = [
        f"{jax.tree_util.keystr(path)} {jnp.result_type(leaf)}{list(jnp.shape(leaf))}".strip()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    words = ", ".join(shown) or "nothing"
    return [words if len(words) <= 160 else words[:157] + "...", zlib.crc32(words.encode())]


def _digest(leaf: Any) -> bytes:
    """Return a digest of an array's values; empty for an array that spans several processes."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return b""
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return zlib.crc32(np.ascontiguousarray(leaf).tobytes()).to_bytes(4)
