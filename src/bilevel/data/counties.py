"""space_ga: turnout of 3,107 US counties in the 1980 presidential election, six features."""

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .directories import DataFile, Directory, load
from .examples import Examples
from .files import DataError, bundled, read, unpack
from .formats import parse_libsvm
from .transforms import unit_range

COUNTIES = 3107
#: The columns of `space_ga`, in their order.
FEATURES = ("POP", "EDUCATION", "HOUSES", "INCOME", "XCOORD", "YCOORD")
MIRROR = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/regression/"
BUNDLED_NAME = "space_ga-counties.csv.gz"
BUNDLED_SHA256 = "b45b7a3783f719ae6e2a7676e54beef52fc61eb5228b776a4642dc4d52c80a23"
LARGEST_FILE = 4_000_000  # bytes; the published files have 565,473 and 252,104
TOLERANCE = 1e-5  # copies are printed with six significant digits or more
CLOSE = 1e-9  # the largest error of a logarithm of a whole number
# Digests of the values of all counties, which are the same however a copy prints its numbers.
# Votes, pop, education, houses, income, longitude and latitude: whole numbers, 64 bits, little-endian.
WHOLE_NUMBERS = {"space_ga": "1a11bb36788e6d97063f9d0a54863546b04adc5c1bdd8a5b558989d3a974919a"}
# Target and features to six significant digits, as C's %g prints them, one county per line.
SIX_DIGITS = {
    "space_ga": "e6d5bfe7eae3dc13fd2434b8738834e404e215afee683825d03abb121c553903",
    "space_ga_scale": "6d1ce1bbe6aae2aad3a9654821747a87f9afdb38bedb99579c88f229793c3064",
}


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
class CountyFile(DataFile):
    bundled: Callable[[], Counties]

    def parse(self, content: bytes, label: str) -> tuple[np.ndarray, np.ndarray]:
        inputs, targets = parse_libsvm(content, label, len(FEATURES))
        found = np.column_stack([targets, inputs])
        self._check_rows(found, label)
        if not is_published(self.name, found):
            raise DataError(
                f"{label}: resembles {self.name}, but its values as a whole are not those published (SHA-256): "
                "counties were changed, or numbers rounded; get the original file"
            )
        return inputs, targets

    def _check_rows(self, found: np.ndarray, label: str) -> None:
        """Raise with the first wrong line, which a digest of the whole file cannot name.

        The bundled counties must be in their rows. The other rows must be in the range of the bundled ones.
        """
        if len(found) != COUNTIES:
            raise DataError(
                f"{label}: has {len(found)} lines, expected the {COUNTIES} counties of {self.name}"
            )
        known = self.bundled()
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


def is_published(name: str, table: np.ndarray) -> bool:
    """Return whether these are the values of `name`, to full precision or to exactly six digits."""
    if name in WHOLE_NUMBERS and whole_numbers(table) == WHOLE_NUMBERS[name]:
        return True
    return six_digits(table) == SIX_DIGITS[name]


def whole_numbers(table: np.ndarray) -> str | None:
    """Return the digest of the counts and coordinates, or None if they are not whole numbers to `CLOSE`."""
    if np.abs(table).max() > 360e6:  # millionths of a degree; no other value is near
        return None
    logarithms, places = table[:, :5].copy(), table[:, 5:]
    logarithms[:, 0] += logarithms[:, 1]  # the target is ln(VOTES / POP)
    if not np.all((logarithms > -1) & (logarithms < 40)):  # so that every count fits into 64 bits
        return None
    counts = np.rint(np.exp(logarithms))
    if np.any(counts < 1) or np.abs(np.log(counts) - logarithms).max() > CLOSE:
        return None
    if np.any(places != np.rint(places)):
        return None
    return hashlib.sha256(np.column_stack([counts, places]).astype("<i8").tobytes()).hexdigest()


def six_digits(table: np.ndarray) -> str | None:
    """Return the digest of the values printed to six digits, or None if they have more."""
    printed = [[f"{value:.6g}" for value in row] for row in table.tolist()]
    if np.any(np.array(printed, float) != table):
        return None
    return hashlib.sha256("".join(" ".join(row) + "\n" for row in printed).encode()).hexdigest()


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
