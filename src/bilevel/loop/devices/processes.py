"""Processes of one run. All of them act on a clock, a signal or a hook together, or none does.

Every process runs the same program on its devices, and a step of one waits for the others. So the processes
exchange everything that may differ between them before they act on it. This takes one small message (about 1
ms) between two chunks. A run on the devices of one process sends no messages.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from bilevel.loop.errors import Failure, RunError, caught
from bilevel.loop.plan import Plan
from bilevel.loop.policies import Alone
from bilevel.loop.state import fingerprint

LEFT = "has left, for"
LONGEST = 4000  # bytes of a process's message
PATIENCE = 10.0  # seconds that a process which leaves waits for the others to receive its message


class PeersLost(ConnectionError):
    """Error for another process of the run that stopped, or left with a reason."""


class Team(Alone):
    """All processes that `jax.distributed` knows, if they run together."""

    several = True

    def __init__(self):
        self.leads, self.lost = jax.process_index() == 0, False

    def all(self, said: Any) -> list[Any]:
        """Return the messages of all processes, in JSON's types, in the order of their numbers."""
        from jax.experimental import multihost_utils

        if self.lost:
            raise PeersLost("another process of this run has gone")
        text = json.dumps(said, ensure_ascii=False).encode()
        assert len(text) <= LONGEST, "too long a message to the other processes"
        message = np.frombuffer(text.ljust(LONGEST), np.uint8)
        try:
            heard = np.asarray(multihost_utils.process_allgather(message))
        except jax.errors.JaxRuntimeError as error:
            raise self._gone(error) from error
        told = [json.loads(bytes(each)) for each in heard]
        for number, each in enumerate(told):
            if isinstance(each, dict) and LEFT in each:
                self.lost = True
                raise PeersLost(f"process {number} has left the run ({each[LEFT]})")
        return told

    @contextmanager
    def together(self):
        """Report an error of this process to the others, which wait for a message."""
        try:
            yield
        except PeersLost as error:
            raise RunError(str(error), None) from error
        except BaseException as error:
            if not self.lost:  # wait at most `PATIENCE`: processes inside a step cannot receive it
                leaving = Thread(target=self._leave, args=(brief(error),), daemon=True)
                leaving.start()
                leaving.join(PATIENCE)
                self.lost = True
            raise

    def _leave(self, why: str) -> None:
        with suppress(PeersLost):
            self.all({LEFT: why})

    def each(self, work: Callable[[], Any], mine: bool = True) -> None:
        """Do the work in every process, and wait for all. If it fails in one process, raise in all."""
        failure = None
        try:
            if mine:
                work()
        except Exception as error:
            failure = error
        told = self.all(None if failure is None else brief(failure))
        if failure is not None:
            raise failure
        if others := [each for each in told if each is not None]:
            raise OSError(f"in another process: {others[0]}")

    def shared(self, failure: Failure | None) -> Failure | None:
        """Return the failure of this process, or else of another one."""
        told = self.all(_words_of(failure))
        return failure or _failure_in(told)

    def lose(self) -> None:
        """Note that the other processes can no longer be reached."""
        self.lost = True

    def named(self, failure: Failure) -> Failure:
        """Return the failure. If JAX raised that a collective failed, replace it by `PeersLost`."""
        if isinstance(failure.error, jax.errors.JaxRuntimeError):
            failure = failure.blamed(failure.what, self._gone(failure.error))
        return failure.blamed("the run") if isinstance(failure.error, PeersLost) else failure

    def _gone(self, error: BaseException) -> PeersLost:
        self.lost = True
        return PeersLost(
            f"another process of this run has gone, or cannot be reached ({brief(error)}): start all of them again "
            'with checkpoint=folder and resume="auto", and the run continues from its last checkpoint'
        )


def team_of(*trees: Any) -> Alone:
    """Return the processes whose devices hold these arrays or meshes."""
    found = {device.process_index for tree in trees for device in _devices(tree)}
    if 1 < len(found) < jax.process_count():
        raise ValueError(
            f"the arrays lie on the devices of {len(found)} of the {jax.process_count()} processes: a run goes over "
            "the devices of all processes, or of one"
        )
    return Team() if len(found) > 1 else Alone()


def _devices(tree: Any) -> Iterator[Any]:
    if isinstance(mesh := getattr(tree, "mesh", tree), jax.sharding.Mesh):
        yield from mesh.devices.flat
        return
    try:  # an iterator (of a loader) counts as a leaf
        leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Iterator))
    except (TypeError, ValueError):  # a later check rejects such an argument by its name
        return
    for leaf in leaves:
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            yield from leaf.sharding.device_set


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
    told = plan.team.all([_words_of(failure), asked, None if given is None else _shapes(given)])
    raised, asks, shapes = zip(*told, strict=True)
    if any(asks):
        plan.interrupts.ask()
    failure = failure or _failure_in(raised)
    if failure is not None or None in shapes:
        return False, failure
    for number, other in enumerate(shapes):
        if other != shapes[0]:
            error = ValueError(
                "the batches of a step must have as many rows in every process, but joined over all processes they "
                f"would be {shapes[0][0]} by the batch of process 0, and {other[0]} by the one of process {number}"
            )
            return False, Failure("the loader", error)
    return True, None


def _words_of(failure: Failure | None) -> str | None:
    return None if failure is None else f"{failure.what} raised {brief(failure.error)}"


def _failure_in(told: Iterable[str | None]) -> Failure | None:
    """Return the failure of the first process that told one."""
    failed = ((number, words) for number, words in enumerate(told) if words is not None)
    return next((Failure(f"process {number}", RuntimeError(words)) for number, words in failed), None)


def _outline(value: Any) -> list[Any]:
    """Return a short text, and two digests: of structure, shapes and types; of values."""
    if isinstance(value, str | int | float | None):
        return [*_shortened(str(value)), 0]
    return [*_shapes(value), zlib.crc32(b"".join(_digest(leaf) for leaf in jax.tree.leaves(value)))]


def _shapes(tree: Any) -> list[Any]:
    shown = [
        f"{jax.tree_util.keystr(path)} {jnp.result_type(leaf)}{list(jnp.shape(leaf))}".strip()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    return _shortened(", ".join(shown) or "nothing")


def _shortened(words: str) -> list[Any]:
    return [words if len(words) <= 160 else words[:157] + "...", zlib.crc32(words.encode())]


def _digest(leaf: Any) -> bytes:
    """Return a digest of an array's values; empty for an array that spans several processes."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return b""
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return zlib.crc32(np.ascontiguousarray(leaf).tobytes()).to_bytes(4)


def brief(error: BaseException) -> str:
    """Return the type and first line of an error."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:300]}"
