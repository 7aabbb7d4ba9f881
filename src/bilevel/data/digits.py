"""MNIST: handwritten digits, 28 × 28 gray values, ten classes."""

import hashlib
from dataclasses import dataclass

import numpy as np

from .directories import DataFile, Directory, load
from .examples import Examples
from .files import DataError, bundled, read
from .formats import parse_idx

CLASSES = 10
LARGEST_FILE = 64 * 1024 * 1024  # bytes; the largest, unpacked, has 47,040,016
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://raw.githubusercontent.com/fgnt/mnist/master/",
)


@dataclass(frozen=True)
class IdxFile(DataFile):
    """File of the data set: its name, the shape of its array, and the SHA-256 of the array's bytes."""

    shape: tuple[int, ...]
    sha256: str

    def parse(self, content: bytes, label: str) -> np.ndarray:
        array = parse_idx(content, label, self.shape)
        if array.ndim == 1 and array.max() >= CLASSES:
            raise DataError(f"{label}: holds the label {array.max()}, expected labels 0..{CLASSES - 1}")
        # The digest is of the values: a copy that was unpacked or packed again has the same data.
        if hashlib.sha256(array.tobytes()).hexdigest() != self.sha256:
            raise DataError(
                f"{label}: has the form of MNIST's {self.name} but other values (SHA-256 {self.sha256[:12]}... "
                "expected); it is damaged or another data set in the same format, such as Fashion-MNIST"
            )
        return array


SHA256 = {
    "train-images-idx3-ubyte.gz": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
    "train-labels-idx1-ubyte.gz": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
    "t10k-images-idx3-ubyte.gz": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    "t10k-labels-idx1-ubyte.gz": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    "mnist-5k-images-idx3-ubyte.gz": "2913c6b6527114b7307e1086335a7665e3f94c74aba3d67525e6f116bf5ae20f",
    "mnist-5k-labels-idx1-ubyte.gz": "41b7b0a9d94690a3a2f54a1d01a9f1cc1b9512e3954fb737ad5ed9f66972403d",
}
SHAPES = (60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,), (5_000, 28, 28), (5_000,)
FILES = tuple(IdxFile(name, shape, SHA256[name]) for name, shape in zip(SHA256, SHAPES, strict=True))
FULL, SUBSET = FILES[:4], FILES[4:]


@dataclass(frozen=True)
class Mnist:
    """Training set and test set. Inputs: float32 gray values in [0, 1], 784 per row; targets: 0..9."""

    train: Examples
    test: Examples

    @property
    def source(self) -> str:
        return self.train.source


def mnist(directory: Directory = None, *, download: bool = False) -> Mnist:
    """Return MNIST from a folder, the cache or the network, else the bundled subset of 5,000 training images.

    The folder is `directory` (or `$BILEVEL_DATA`). The network is used only with `download=True`.
    `result.source` names the source.

    Full: the canonical 60,000 training and 10,000 test images. Bundled: 4,000 and 1,000; every fifth image of
    each class is a test image.
    """
    urls = (lambda name: [mirror + name for mirror in MIRRORS]) if download else None
    found = load(FULL, directory, LARGEST_FILE, urls)
    if found is None:
        return _bundled()
    (train_images, train_labels, test_images, test_labels), place = found
    source = f"full MNIST from {place}"
    return Mnist(_examples(train_images, train_labels, source), _examples(test_images, test_labels, source))


def _bundled() -> Mnist:
    paths = [(file, bundled(file.name)) for file in SUBSET]
    images, labels = (file.parse(read(path, LARGEST_FILE), str(path)) for file, path in paths)
    pool = _examples(images, labels, f"bundled MNIST subset ({len(labels):,} images)")
    test = np.arange(len(pool)) % 5 == 4  # the file is sorted by class, 500 images each
    return Mnist(pool.take(~test), pool.take(test))


def _examples(images: np.ndarray, labels: np.ndarray, source: str) -> Examples:
    gray = images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
    return Examples(gray, labels.astype(np.int32), source)
