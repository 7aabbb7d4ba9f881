"""Build the bundled space_ga table from `elect80`, a CC0 table in Debian's package r-cran-spdata.

    apt-get download r-cran-spdata=2.2.1-1
    pip download --no-deps --no-binary :all: pysal==1.14.4
    pip install numpy rdata
    python scripts/build_bundled_space_ga.py r-cran-spdata_2.2.1-1_all.deb PySAL-1.14.4.tar.gz

elect80 gives, per county, VOTES/POP, EDUCATION/POP, HOUSES/POP and INCOME/POP as doubles; space_ga is made of
the five whole numbers. They are recovered in two steps, neither of which looks at space_ga itself.

1. Each share is the double nearest to a fraction, which `fraction` finds and which is unique at these sizes.
   The least common denominator D of a county's four shares divides POP: POP = m·D for a whole m, and m = 1
   unless POP and all four numerators share a factor (about 1 county in 30, as 1 − 1/ζ(5) suggests).
2. m is settled by the county's total population T in 1980, from an unrelated table (`nat.geojson`, US county
   homicides, in the PyPI package PySAL; nothing of it is stored). Adults are at most all: m·D ≤ T. So D > T/2
   leaves m = 1. Where D ≤ T/2, m·D/T must lie in the range that the counties settled so far show for POP/T;
   m is settled if one whole number alone does that.

A county is left out if nothing settles its m: several multiples fit, or there is no T of its own (that table
merges 25 counties into a neighbour; both are left out of step 2, the neighbour unless D > T/2).
"""

import argparse
import gzip
import hashlib
import json
import math
import tarfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
from elect80 import read_elect80

TARGET = Path(__file__).parents[1] / "src" / "bilevel" / "data" / "bundled" / "space_ga-counties.csv.gz"
HEADER = "row,fips,votes,pop,education,houses,income,longitude,latitude"
HOMICIDES = "pysal/examples/nat/nat.geojson"


def fraction(x: float) -> Fraction:
    """The one fraction with a denominator up to Q that rounds to the double x, where 2 ulp(x) Q² ≤ 1.

    Two different such fractions would be at least 1/Q² apart, more than the one spacing of doubles that rounding
    leaves them; and being closer to x than 1/(2Q²), it is a convergent of x's continued fraction.
    """
    largest = math.isqrt(int(1 / (2 * math.ulp(x))))
    p, q, p_next, q_next, rest = 0, 1, 1, 0, Fraction(x)
    while True:  # ends: the denominators grow at least like the Fibonacci numbers
        whole = math.floor(rest)
        p, q, p_next, q_next = p_next, q_next, whole * p_next + p, whole * q_next + q
        if q_next > largest:
            raise ValueError(f"{x!r} is no fraction with a denominator up to {largest}")
        if p_next / q_next == x:
            return Fraction(p_next, q_next)
        rest = 1 / (rest - whole)


def least_denominator(shares: Sequence[float]) -> int:
    return math.lcm(*(fraction(share).denominator for share in shares))


def settle_multiples(denominator: np.ndarray, total: np.ndarray, own_total: np.ndarray) -> np.ndarray:
    """m per county as in the module's docstring, and 0 where it stays open.

    `total` is T (NaN where there is none), `own_total` tells whether it is that county's alone.
    """
    share = denominator / total
    multiple = np.where(share > 1 / 2, 1, 0)
    low, high = share[multiple == 1].min(), share[multiple == 1].max()
    for county in np.flatnonzero((multiple == 0) & own_total):
        fitting = range(math.ceil(low / share[county]), math.floor(high / share[county]) + 1)
        if len(fitting) == 1:
            multiple[county] = fitting[0]
    return multiple


def total_populations(
    homicides: dict, fips: Sequence[str], degrees: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """T per county, and whether it is the county's own: it is not if a county without an entry lies inside."""
    units = {unit["properties"]["FIPS"]: unit for unit in homicides["features"]}
    total = np.array([units[code]["properties"]["PO80"] if code in units else math.nan for code in fips])
    orphans = degrees[np.isnan(total)]
    own = [
        code in units and not any(inside(point, units[code]["geometry"]) for point in orphans)
        for code in fips
    ]
    return total, np.array(own)


def inside(point: np.ndarray, multipolygon: dict) -> bool:
    """Whether a ray from the point crosses the outlines an odd number of times."""
    x, y = point
    crossings = 0
    for ring in (ring for polygon in multipolygon["coordinates"] for ring in polygon):
        start = np.asarray(ring)[:-1, :2]
        end = np.asarray(ring)[1:, :2]
        a, b = (side[(start[:, 1] > y) != (end[:, 1] > y)] for side in (start, end))
        crossings += np.count_nonzero(x < a[:, 0] + (b - a)[:, 0] * (y - a[:, 1]) / (b - a)[:, 1])
    return crossings % 2 == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("spdata", type=Path, help="the Debian package r-cran-spdata")
    parser.add_argument("pysal", type=Path, help="the source distribution of PySAL 1.14")
    parser.add_argument("--out", type=Path, default=TARGET, help="file to write")
    arguments = parser.parse_args()
    for path in (arguments.spdata, arguments.pysal):
        print(f"{path.name}: SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}")

    table = read_elect80(arguments.spdata)
    with tarfile.open(arguments.pysal) as tar:
        (member,) = (member for member in tar if member.name.endswith(HOMICIDES))
        stream = tar.extractfile(member)
        assert stream is not None
        homicides = json.load(stream)

    denominator = np.array([least_denominator(shares) for shares in table.shares.tolist()])
    total, own_total = total_populations(homicides, table.fips, table.degrees)
    multiple = settle_multiples(denominator, total, own_total)

    lines = [HEADER]
    for row in np.flatnonzero(multiple):
        pop = int(multiple[row] * denominator[row])
        votes, *counts = (int(fraction(share) * pop) for share in table.shares[row].tolist())
        place = np.rint(table.degrees[row] * 1e6).astype(int).tolist()
        lines.append(",".join(map(str, [row, int(table.fips[row]), votes, pop, *counts, *place])))
    content = ("\n".join(lines) + "\n").encode()
    arguments.out.write_bytes(gzip.compress(content, compresslevel=9, mtime=0))
    print(f"{arguments.out.name}, unpacked: SHA-256 {hashlib.sha256(content).hexdigest()}")

    values, counts = np.unique(multiple, return_counts=True)
    print(
        f"{len(multiple)} counties; number with multiple m (0: open, left out):",
        dict(zip(values.tolist(), counts.tolist(), strict=True)),
    )
    print(f"{arguments.out.name}: {len(lines) - 1} counties, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
