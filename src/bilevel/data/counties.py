"""space_ga: turnout of 3,107 US counties in the 1980 presidential election, six features."""

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .county_digests import is_published
from .directories import Directory, load
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
    """Counties of the bundled table; `rows` are their row numbers in the original files, from zero."""

    rows: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray


def space_ga(directory: Directory = None, *, download: bool = False) -> Examples:
    """Return space_ga from a folder, the cache or the network, else the bundled 3,064 of the 3,107 counties.

    The folder is `directory` (or `$BILEVEL_DATA`). The network is used only with `download=True`.
    `result.source` names the source.

    Inputs (float64, columns `FEATURES`): ln POP, ln EDUCATION, ln HOUSES, ln INCOME, longitude and latitude
    in millionths of a degree. Targets: ln(VOTES / POP). The values are as published: scale before use
    (`standardize`).
    """
    return _load(CountyFile("space_ga", bundled_counties), directory, download)


def space_ga_scale(directory: Directory = None, *, download: bool = False) -> Examples:
    """Return `space_ga` with each feature scaled linearly to [-1, 1] over all counties, but not the targets.

    The original file has six significant digits. The bundled counties include both extremes of every column,
    so their scale is the same, at full precision.
    """
    return _load(CountyFile("space_ga_scale", _bundled_scaled), directory, download)


@dataclass(frozen=True)
class CountyFile:
    name: str
    bundled: Callable[[], Counties]

    def parse(self, content: bytes, label: str) -> tuple[np.ndarray, np.ndarray]:
        inputs, targets = parse_libsvm(content, label, len(FEATURES))
        self._check_rows(inputs, targets, label)
        if not is_published(self.name, inputs, targets):
            raise DataError(
                f"{label}: resembles {self.name}, but its values as a whole are not those published (SHA-256): "
                "counties were changed, or numbers rounded; get the original file"
            )
        return inputs, targets

    def _check_rows(self, inputs: np.ndarray, targets: np.ndarray, label: str) -> None:
        """Raise with the first wrong line, which a digest of the whole file cannot name.

        The bundled counties must be in their rows. The other rows must be in the range of the bundled ones.
        """
        if len(inputs) != COUNTIES:
            raise DataError(
                f"{label}: has {len(inputs)} lines, expected the {COUNTIES} counties of {self.name}"
            )
        known = self.bundled()
        found = np.column_stack([targets, inputs])
        expected = np.column_stack([known.targets, known.inputs])
        slack = TOLERANCE * np.maximum(1.0, np.abs(expected).max(axis=0))
        within = (found >= expected.min(axis=0) - slack) & (found <= expected.max(axis=0) + slack)
        close = TOLERANCE * np.maximum(1.0, np.abs(expected))
        within[known.rows] = np.abs(found[known.rows] - expected) <= close
        if not within.all():
            row, column = np.argwhere(~within)[0]
            quantity = ("the target", *FEATURES)[column]
            raise DataError(
                f"{label}, line {row + 1}: {quantity} is {found[row, column]:.10g}, which is not {self.name}'s value; "
                "the file is damaged or another data set"
            )


def _load(file: CountyFile, directory: Directory, download: bool) -> Examples:
    found = load([file], directory, LARGEST_FILE, (lambda name: [MIRROR + name]) if download else None)
    if found is None:
        own = file.bundled()
        source = f"bundled {file.name} ({len(own.rows):,} of {COUNTIES:,} counties)"
        return Examples(own.inputs, own.targets, source)
    ((inputs, targets),), place = found
    return Examples(inputs, targets, f"full {file.name} from {place}")


def bundled_counties() -> Counties:
    """Return the logarithms of space_ga, from the bundled table of whole numbers."""
    path = bundled(BUNDLED_NAME)
    content = unpack(read(path, 1_000_000), str(path), at_most=1_000_000)
    if hashlib.sha256(content).hexdigest() != BUNDLED_SHA256:
        raise DataError(
            f"{path}: is damaged (SHA-256 {BUNDLED_SHA256[:12]}... expected); install the package again"
        )
    table = np.loadtxt(io.BytesIO(content), delimiter=",", dtype=np.int64, skiprows=1)
    row, _fips, votes, pop, education, houses, income, longitude, latitude = table.T
    logarithms = np.log(np.stack([pop, education, houses, income], axis=1))
    inputs = np.column_stack([logarithms, longitude, latitude])
    return Counties(row, inputs, np.log(votes) - logarithms[:, 0])


def _bundled_scaled() -> Counties:
    raw = bundled_counties()
    (inputs,) = unit_range(raw.inputs)
    return Counties(raw.rows, inputs, raw.targets)
