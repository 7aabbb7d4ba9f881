"""space_ga: turnout of 3,107 US counties in the 1980 presidential election, six features."""

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .county_digests import is_published
from .directories import Directory, locate
from .download import download as download_file
from .errors import DataError
from .examples import Examples
from .files import bundled, read, unpack
from .libsvm import parse_libsvm
from .scaling import unit_range

COUNTIES = 3107
#: The columns of `space_ga`, in their order.
FEATURES = ("POP", "EDUCATION", "HOUSES", "INCOME", "XCOORD", "YCOORD")
MIRROR = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/regression/"
BUNDLED_NAME = "space_ga-counties.csv.gz"
BUNDLED_SHA256 = "b45b7a3783f719ae6e2a7676e54beef52fc61eb5228b776a4642dc4d52c80a23"
LARGEST_FILE = 4_000_000  # bytes; the published files have 565,473 and 252,104
TOLERANCE = 1e-5  # copies are printed with six significant digits or more


@dataclass(frozen=True)
class Counties:
    """The counties of the bundled table: `rows` are their places in the original files, counted from zero."""

    rows: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray


def space_ga(directory: Directory = None, *, download: bool = False) -> Examples:
    """space_ga from `directory` (or `$BILEVEL_DATA`), else the cache, else, with `download=True`, the network,
    else the bundled 3,064 of the 3,107 counties. `result.source` says which.

    Inputs (float64, columns `FEATURES`): ln POP, ln EDUCATION, ln HOUSES, ln INCOME, longitude and latitude in
    millionths of a degree. Targets: ln(VOTES / POP). As published: scale before use (`standardize`).
    """
    return _load("space_ga", bundled_counties, directory, download)


def space_ga_scale(directory: Directory = None, *, download: bool = False) -> Examples:
    """Like `space_ga`, with each feature scaled linearly to [-1, 1] over all counties; targets are not scaled.

    The original file has six significant digits. The bundled counties include both extremes of every column,
    so that they are scaled as they are there, at full precision.
    """
    return _load("space_ga_scale", _bundled_scaled, directory, download)


def _load(name: str, own_counties: Callable[[], Counties], directory: Directory, download: bool) -> Examples:
    def check(content: bytes, label: str) -> tuple[np.ndarray, np.ndarray]:
        inputs, targets = parse_libsvm(content, label, len(FEATURES))
        _require_same_counties(inputs, targets, own_counties(), label, name)
        if not is_published(name, inputs, targets):
            raise DataError(
                f"{label}: resembles {name}, but its values as a whole are not those published (SHA-256): "
                "counties were changed, or numbers rounded; get the original file"
            )
        return inputs, targets

    def fetch(name: str, destination: Path) -> None:
        download_file([MIRROR + name], destination, check)

    found = locate([name], directory, fetch if download else None)
    if found is None:
        own = own_counties()
        return Examples(
            own.inputs, own.targets, f"bundled {name} ({len(own.rows):,} of {COUNTIES:,} counties)"
        )
    (path,) = found.files
    return Examples(*check(read(path, LARGEST_FILE), str(path)), f"full {name} from {found.place}")


def _require_same_counties(
    inputs: np.ndarray, targets: np.ndarray, known: Counties, label: str, name: str
) -> None:
    """Names the first line that is not the data set's, which a digest of the whole could not.

    The bundled counties must be there, row by row; the few others must lie within their range, which is that
    of the whole data set.
    """
    if len(inputs) != COUNTIES:
        raise DataError(f"{label}: has {len(inputs)} lines, expected the {COUNTIES} counties of {name}")
    found = np.column_stack([targets, inputs])
    expected = np.column_stack([known.targets, known.inputs])
    slack = TOLERANCE * np.maximum(1.0, np.abs(expected).max(axis=0))
    within = (found >= expected.min(axis=0) - slack) & (found <= expected.max(axis=0) + slack)
    within[known.rows] = np.abs(found[known.rows] - expected) <= TOLERANCE * np.maximum(1.0, np.abs(expected))
    if not within.all():
        row, column = np.argwhere(~within)[0]
        quantity = ("the target", *FEATURES)[column]
        raise DataError(
            f"{label}, line {row + 1}: {quantity} is {found[row, column]:.10g}, which is not {name}'s value; "
            "the file is damaged or another data set"
        )


def bundled_counties() -> Counties:
    """The bundled table of whole numbers, turned into space_ga's logarithms."""
    path = bundled(BUNDLED_NAME)
    content = unpack(read(path, 1_000_000), str(path), at_most=1_000_000)
    if hashlib.sha256(content).hexdigest() != BUNDLED_SHA256:
        raise DataError(
            f"{path}: is damaged (SHA-256 {BUNDLED_SHA256[:12]}... expected); install the package again"
        )
    _header, _, body = content.decode("ascii").partition("\n")
    table = np.loadtxt(io.StringIO(body), delimiter=",", dtype=np.int64)
    row, _fips, votes, pop, education, houses, income, longitude, latitude = table.T
    logarithms = np.log(np.stack([pop, education, houses, income], axis=1))
    inputs = np.column_stack([logarithms, longitude, latitude])
    return Counties(row, inputs, np.log(votes) - logarithms[:, 0])


def _bundled_scaled() -> Counties:
    raw = bundled_counties()
    (inputs,) = unit_range(raw.inputs)
    return Counties(raw.rows, inputs, raw.targets)
