"""Digests of the values of space_ga, which are the same however a copy prints its numbers."""

import hashlib

import numpy as np

CLOSE = 1e-9  # the largest error of a logarithm of a whole number
# Votes, pop, education, houses, income, longitude and latitude of all counties: whole numbers, 64 bits, little-endian.
WHOLE_NUMBERS = {"space_ga": "1a11bb36788e6d97063f9d0a54863546b04adc5c1bdd8a5b558989d3a974919a"}
# Target and features to six significant digits, as C's %g prints them, one county per line.
SIX_DIGITS = {
    "space_ga": "e6d5bfe7eae3dc13fd2434b8738834e404e215afee683825d03abb121c553903",
    "space_ga_scale": "6d1ce1bbe6aae2aad3a9654821747a87f9afdb38bedb99579c88f229793c3064",
}


def is_published(name: str, inputs: np.ndarray, targets: np.ndarray) -> bool:
    """Return whether these are the values of `name`, to full precision or to exactly six digits."""
    table = np.column_stack([targets, inputs])
    if name in WHOLE_NUMBERS and whole_numbers(table) == WHOLE_NUMBERS[name]:
        return True
    return six_digits(table) == SIX_DIGITS[name]


def whole_numbers(table: np.ndarray) -> str | None:
    """Return the digest of the counts and coordinates, or None if they are not whole numbers to `CLOSE`."""
    if np.abs(table).max() > 360e6:  # millionths of a degree; no other value is near
        return None
    target, pop, education, houses, income, longitude, latitude = table.T
    logarithms = np.stack([target + pop, pop, education, houses, income], axis=1)
    if not np.all((logarithms > -1) & (logarithms < 40)):  # so that every count fits into 64 bits
        return None
    counts, places = np.rint(np.exp(logarithms)), np.stack([longitude, latitude], axis=1)
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
