"""Manifest next to the tables of an experiment: the settings, data, code and libraries behind them."""

import functools
import hashlib
import json
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bilevel.atomic_files import content_of, write as write_file
from bilevel.lab.paper.experiment import Experiment, Options

# Folders of the package whose code only reads tables. By path: a name could match other files.
READERS = ("cli", "lab/compare", "lab/paper/claims", "lab/paper/plots", "lab/paper/report")
LARGEST_MANIFEST, LARGEST_TABLE = 1_000_000, 64_000_000  # bytes; ours are a thousand times smaller


def path_of(experiment: Experiment, out: Path) -> Path:
    return out / f"{experiment.name}.json"


def origin(settings: dict[str, Any], inputs: Any) -> dict[str, Any]:
    """Return everything that the tables depend on: settings, data, code, and the libraries for arithmetic."""
    exact = {
        "settings": settings,
        "data": None if inputs is None else digest_of_data(inputs),
        "code": digest_of_code(),
        "libraries": {name: version(name) for name in ("jax", "jaxlib", "numpy", "optax")},
    }
    return json.loads(json.dumps(exact))  # in the form in which it is read back, to compare the two


def read(experiment: Experiment, out: Path) -> dict[str, Any] | None:
    """Return the manifest, or None if it is missing or damaged, or if a table is missing or was changed."""
    return examined(experiment, out)[0]


def examined(experiment: Experiment, out: Path) -> tuple[dict[str, Any] | None, str | None]:
    """Return the manifest if it is valid, and the reason why an existing one is not."""
    path = path_of(experiment, out)
    try:
        manifest = json.loads(content_of(path, LARGEST_MANIFEST))
        sound = isinstance(manifest, dict) and manifest.get("digest") == digest_of_manifest(manifest)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{path} cannot be read ({error.strerror or error})"
    except (ValueError, RecursionError):
        return None, f"{path} is damaged"
    if not sound or not _complete(manifest):
        return None, f"{path} is damaged, was edited, or is of another version"
    if manifest["origin"]["code"] != digest_of_code():
        return None, f"{path} is of another version of the code"
    for name in experiment.tables:
        try:
            sound = digest_of_file(out / name) == manifest["tables"].get(name)
        except (OSError, ValueError):
            sound = False
        if not sound:
            return None, f"{out / name} is missing or was changed"
    return manifest, None


def _complete(manifest: dict[str, Any]) -> bool:
    kinds = {"title": str, "seconds": int | float, "source": str | None, "tables": dict, "origin": dict}
    right = all(name in manifest and isinstance(manifest[name], kind) for name, kind in kinds.items())
    of = manifest["origin"] if right else {}
    return isinstance(of.get("settings"), dict) and "code" in of


def departures(experiment: Experiment, manifest: dict[str, Any]) -> list[str]:
    """Return the settings that differ from the full protocol."""
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
    # JSON knows the escapes of `backslashreplace`.
    write_file(path_of(experiment, out), text.encode("utf-8", "backslashreplace"))


def digest_of_manifest(manifest: dict[str, Any]) -> str:
    """Return the digest of all entries except the digest. It detects damage, not forgery."""
    rest = {name: value for name, value in manifest.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    return hashlib.sha256(content_of(path, LARGEST_TABLE)).hexdigest()


def digest_of_data(inputs: Any) -> str:
    """Return the digest of the numbers. The same data in another folder have the same digest."""
    digest = hashlib.sha256()
    for part in jax.tree.leaves(list(vars(inputs).values())):
        if isinstance(part, np.ndarray):  # not the description of the source
            digest.update(str((part.shape, part.dtype.str)).encode() + part.tobytes())
    return digest.hexdigest()


@functools.cache  # the code that runs, even if its files change later
def digest_of_code() -> str:
    root = Path(str(files("bilevel")))
    digest = hashlib.sha256()
    for name in computing(root):
        digest.update(name.encode() + (root / name).read_bytes())
    return digest.hexdigest()


def computing(root: Path) -> list[str]:
    """Return the files of the package that tables depend on."""
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return [name for name in names if not name.startswith(tuple(f"{folder}/" for folder in READERS))]
