"""Beside an experiment's tables lies a manifest: what they were computed from. It decides whether they still hold."""

import dataclasses
import functools
import hashlib
import json
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from bilevel.atomic_files import content_of, write as write_file
from bilevel.lab.paper.experiment import Experiment, Options

# Tables depend on the code that computes them, not on the code that only reads them. Folders of the package, by path:
# a name alone would mean others of that name too.
READERS = ("cli", "lab/compare", "lab/paper/claims", "lab/paper/plots", "lab/paper/report")


LARGEST_MANIFEST, LARGEST_TABLE = (
    1_000_000,
    64_000_000,
)  # bytes; ours have thousands and hundreds of thousands


class Damaged(Exception):
    """A manifest that vouches for nothing; the message says why."""


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
    """The manifest, if it is as this code wrote it and its tables lie beside it, whole and untouched."""
    try:
        return _examined(experiment, out)
    except Damaged:
        return None


def fault(experiment: Experiment, out: Path) -> str | None:
    """Why the manifest that lies there, if one does, vouches for nothing."""
    try:
        _examined(experiment, out)
    except Damaged as reason:
        return str(reason)
    return None


def _examined(experiment: Experiment, out: Path) -> dict[str, Any] | None:
    """The manifest, or None where there is none."""
    path = path_of(experiment, out)
    try:
        manifest = json.loads(content_of(path, LARGEST_MANIFEST))
        sound = isinstance(manifest, dict) and manifest.get("digest") == digest_of_manifest(manifest)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged") from error
    if not sound or not _complete(manifest):
        raise Damaged(f"{path} is damaged, was edited, or is of another version")
    if manifest["origin"]["code"] != digest_of_code():
        raise Damaged(f"{path} is of another version of the code")
    for name in experiment.tables:
        try:
            sound = digest_of_file(out / name) == manifest["tables"].get(name)
        except (OSError, ValueError):
            sound = False
        if not sound:
            raise Damaged(f"{out / name} is missing or was changed")
    return manifest


def _complete(manifest: dict[str, Any]) -> bool:
    kinds = {"title": str, "seconds": int | float, "source": str | None, "tables": dict, "origin": dict}
    return (
        all(name in manifest and isinstance(manifest[name], kind) for name, kind in kinds.items())
        and isinstance(manifest["origin"].get("settings"), dict)
        and "code" in manifest["origin"]
    )


def holds(experiment: Experiment, out: Path, origin: dict[str, Any]) -> bool:
    """Whether the tables in `out` are intact and were computed from exactly this origin."""
    manifest = read(experiment, out)
    return manifest is not None and manifest["origin"] == origin


def departures(experiment: Experiment, manifest: dict[str, Any]) -> list[str]:
    """The settings in which its tables are not those of the full protocol."""
    full, given = json.loads(json.dumps(experiment.settings(Options()))), manifest["origin"]["settings"]
    return sorted(name for name in full if name in given and full[name] != given[name])


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
    manifest["digest"] = digest_of_manifest(manifest)
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    write_file(
        path_of(experiment, out), text.encode("utf-8", "backslashreplace")
    )  # escapes that JSON knows, too


def digest_of_manifest(manifest: dict[str, Any]) -> str:
    """Of everything in it but this digest, so that any damage shows; no protection against who can compute it, too."""
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    return hashlib.sha256(content_of(path, LARGEST_TABLE)).hexdigest()


def digest_of_data(inputs: Any) -> str:
    """Of the numbers, wherever they were read from: the same data in another folder are the same data."""
    digest = hashlib.sha256()
    for array in _arrays(inputs):
        digest.update(str((array.shape, array.dtype.str)).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


@functools.cache  # of the code that runs, whatever happens to its files meanwhile
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
