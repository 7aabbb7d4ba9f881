"""Every file of the newest checkpoint truncated, changed, emptied and deleted: the one before must be used."""

import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bilevel as bl

PROBLEM = bl.Problem(
    inner=lambda x, y: jnp.sum((y - x["a"]) ** 2) + jnp.sum(x["big"] ** 2),
    outer=lambda x, y: jnp.sum((y - 1.0) ** 2) + jnp.sum(x["a"] ** 2) + 0.1 * jnp.sum(x["big"] ** 2),
)
SOLVER = bl.aid(PROBLEM, inner=0.1, adjoint=0.1, outer=0.1)
X0 = {
    "a": jnp.arange(3.0),
    "big": jnp.asarray(np.random.default_rng(0).normal(size=2000)),
}  # in files of its own
Y0 = jnp.ones(3)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def deleted(path: Path) -> None:
    path.unlink()


DAMAGES: tuple[Callable[[Path], None], ...] = (truncated, changed, emptied, deleted)


def damaged_checkpoints(kinds: Sequence[Callable[[Path], None]] = DAMAGES) -> dict[str, Counter]:
    """By kind of damage, how often which outcome was met with."""
    with tempfile.TemporaryDirectory() as room:
        saved = Path(room) / "saved"
        bl.run(SOLVER, X0, Y0, steps=8, checkpoint=saved, options=bl.RunOptions(save_every=2))
        newest = max(
            (path for path in saved.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)
        )
        files = sorted(path.relative_to(saved) for path in newest.rglob("*") if path.is_file())
        return {damage.__name__: Counter(_outcome(saved, file, damage) for file in files) for damage in kinds}


def _outcome(saved: Path, file: Path, damage: Callable[[Path], None]) -> str:
    copy = Path(shutil.copytree(saved, saved.parent / "copy"))
    try:
        damage(copy / file)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            read = bl.load(copy)
    finally:
        shutil.rmtree(copy)
    expected = bl.run(SOLVER, X0, Y0, steps=6 if warned else 8)
    pairs = zip(
        jax.tree.leaves((read.x, read.y, read.trace)),
        jax.tree.leaves((expected.x, expected.y, expected.trace)),
        strict=True,
    )
    if not all(np.array_equal(a, b) for a, b in pairs):
        return "wrong"
    return "the one before used" if warned else "read all the same"
