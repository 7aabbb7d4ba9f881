"""Beside an experiment's tables lies a manifest: what they were computed from. It decides whether they still hold."""

import dataclasses
import hashlib
import json
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from bilevel.data.files import write_atomically
from bilevel.lab.paper.experiment import Experiment

# Tables depend on the code that computes them, not on the code that only reads them. Folders of the package, by path:
# a name alone would mean others of that name too.
READERS = ("cli", "lab/compare", "lab/paper/claims", "lab/paper/plots", "lab/paper/report")


def path_of(experiment: Experiment, out: Path) -> Path:
    return out / f"{experiment.name}.json"


def origin(settings: dict[str, Any], inputs: Any) -> dict[str, Any]:
    """Everything the tables follow from: settings, data, code, and the libraries that do the arithmetic."""
    exact = {
        "settings": settings,
        "data": None if inputs is None else digest_of_data(inputs),
        "code": digest_of_code(),
        "libraries": {name: version(name) for name in ("jax", "jaxlib", "numpy", "optax")},
    }
    return json.loads(json.dumps(exact))  # as it will read back, so that the two can be compared


def read(experiment: Experiment, out: Path) -> dict[str, Any] | None:
    """The manifest, if it is legible and its tables lie beside it, whole and untouched."""
    try:
        manifest = json.loads(path_of(experiment, out).read_text(encoding="utf-8"))
        sums = {name: digest_of_file(out / name) for name in experiment.tables}
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("tables") == sums else None


def holds(experiment: Experiment, out: Path, origin: dict[str, Any]) -> bool:
    """Whether the tables in `out` are intact and were computed from exactly this origin."""
    manifest = read(experiment, out)
    return manifest is not None and manifest["origin"] == origin


def write(
    experiment: Experiment, out: Path, origin: dict[str, Any], source: str | None, seconds: float
) -> None:
    manifest = {
        "experiment": experiment.name,
        "title": experiment.title,
        "seconds": round(seconds, 2),
        "source": source,
        "tables": {name: digest_of_file(out / name) for name in experiment.tables},
        "origin": origin,
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path_of(experiment, out), text.encode())


def digest_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digest_of_data(inputs: Any) -> str:
    """Of the numbers, wherever they were read from: the same data in another folder are the same data."""
    digest = hashlib.sha256()
    for array in _arrays(inputs):
        digest.update(str((array.shape, array.dtype.str)).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def digest_of_code() -> str:
    root = Path(str(files("bilevel")))
    digest = hashlib.sha256()
    for name in computing(root):
        digest.update(name.encode() + (root / name).read_bytes())
    return digest.hexdigest()


def computing(root: Path) -> list[str]:
    """The package's files that tables depend on."""
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return [name for name in names if not name.startswith(tuple(f"{folder}/" for folder in READERS))]


def _arrays(value: Any) -> list[np.ndarray]:
    if isinstance(value, np.ndarray):
        return [value]
    if dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return [array for part in parts for array in _arrays(part)]
    return []
