"""The MNIST loader on the bundled subset and on a small stand-in for the full files."""

import gzip
import hashlib
import struct

import numpy as np
import pytest

from bilevel.data import DataError, digits, mnist
from bilevel.data.digits import FULL, IdxFile


def idx(values: np.ndarray) -> bytes:
    return struct.pack(f">{1 + values.ndim}I", 2048 + values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def small(monkeypatch):
    """MNIST's four names for 20 training and 10 test images, and their gzipped contents."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.integers(0, 256, (20, 28, 28)).astype(np.uint8),
        rng.integers(0, 10, 20).astype(np.uint8),
        rng.integers(0, 256, (10, 28, 28)).astype(np.uint8),
        rng.integers(0, 10, 10).astype(np.uint8),
    ]
    expected = tuple(
        IdxFile(file.name, array.shape, hashlib.sha256(array.tobytes()).hexdigest())
        for file, array in zip(FULL, arrays, strict=True)
    )
    monkeypatch.setattr(digits, "FULL", expected)
    return {file.name: gzip.compress(idx(array), mtime=0) for file, array in zip(FULL, arrays, strict=True)}


def write(folder, contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def values(content: bytes, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(content), np.uint8, offset=header)


def test_bundled_subset(no_network):
    data = mnist()
    assert data.source == "bundled MNIST subset (5,000 images)"
    for part, size in ((data.train, 4000), (data.test, 1000)):
        assert part.inputs.shape == (size, 784)
        assert part.inputs.dtype == np.float32
        assert part.inputs.min() == 0
        assert part.inputs.max() == 1
        assert np.issubdtype(part.targets.dtype, np.integer)
        np.testing.assert_array_equal(np.bincount(part.targets), np.full(10, size // 10))
    images = {row.tobytes() for part in (data.train, data.test) for row in part.inputs}
    assert len(images) == 5000  # no image twice, so none is in both sets


def test_bundled_labels_fit_their_images():
    """Nearest class mean, a rule with nothing to tune, gets most test images right (about 0.8 on MNIST)."""
    data = mnist()
    means = np.stack([data.train.inputs[data.train.targets == digit].mean(axis=0) for digit in range(10)])
    distances = ((data.test.inputs[:, None, :] - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == data.test.targets).mean() > 0.7


def test_full_files_from_a_folder(small, tmp_path, no_network):
    write(tmp_path / "mine", small)
    data = mnist(tmp_path / "mine")
    assert data.source == f"full MNIST from {tmp_path / 'mine'}"
    for part, prefix in ((data.train, "train"), (data.test, "t10k")):
        pixels = values(small[f"{prefix}-images-idx3-ubyte.gz"], 16).reshape(-1, 784)
        np.testing.assert_array_equal(np.rint(part.inputs * 255), pixels)
        np.testing.assert_array_equal(part.targets, values(small[f"{prefix}-labels-idx1-ubyte.gz"], 8))


def test_files_may_be_unpacked_or_packed_again(small, tmp_path):
    train_images, *others = small
    write(tmp_path, {train_images.removesuffix(".gz"): gzip.decompress(small[train_images])})
    write(
        tmp_path,
        {name: gzip.compress(gzip.decompress(small[name]), compresslevel=1, mtime=0) for name in others},
    )
    assert len(mnist(tmp_path).train) == 20


def test_a_missing_file_is_named(small, tmp_path, cache):
    write(cache, small)
    del small["t10k-labels-idx1-ubyte.gz"]
    write(tmp_path / "mine", small)
    with pytest.raises(DataError, match=r"mine .* lacks t10k-labels-idx1-ubyte\.gz"):
        mnist(tmp_path / "mine")


def relabel(content: bytes, label: int) -> bytes:
    return gzip.compress(gzip.decompress(content)[:-1] + bytes([label]), mtime=0)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("train-images-idx3-ubyte.gz", lambda content: content[:-20], "gzip stream is cut off"),
        (
            "train-labels-idx1-ubyte.gz",
            lambda content: relabel(content, 10),
            r"label 10, expected labels 0\.\.9",
        ),
        ("t10k-images-idx3-ubyte.gz", lambda content: relabel(content, 77), "other values .* Fashion-MNIST"),
        ("t10k-labels-idx1-ubyte.gz", lambda content: b"<html></html>", "magic number"),
    ],
)
def test_a_spoilt_file_is_named(small, tmp_path, name, spoil, message):
    write(tmp_path, small | {name: spoil(small[name])})
    with pytest.raises(DataError, match=message) as caught:
        mnist(tmp_path)
    assert str(tmp_path / name) in str(caught.value)


def test_swapped_files_are_noticed(small, tmp_path):
    swapped = small | {"train-labels-idx1-ubyte.gz": small["t10k-labels-idx1-ubyte.gz"]}
    write(tmp_path, swapped)
    with pytest.raises(DataError, match=r"shape \(10,\), expected \(20,\)"):
        mnist(tmp_path)


@pytest.mark.slow
def test_download_fills_the_cache_once(small, server, cache, monkeypatch):
    monkeypatch.setattr(digits, "MIRRORS", (server.address + "/gone/", server.address + "/mnist/"))
    server.answers |= {f"/mnist/{name}": content for name, content in small.items()}
    assert mnist().source.startswith("bundled")
    assert server.asked == []
    assert mnist(download=True).source == f"full MNIST from the cache ({cache})"
    assert sorted(path.name for path in cache.iterdir()) == sorted(small)
    requests = len(server.asked)
    assert mnist(download=True).source == mnist().source == f"full MNIST from the cache ({cache})"
    assert len(server.asked) == requests


@pytest.mark.slow
def test_a_failed_download_keeps_the_good_files_and_goes_on_from_there(small, server, cache, monkeypatch):
    monkeypatch.setattr(digits, "MIRRORS", (server.address + "/mnist/",))
    first, second, *_ = small
    server.answers |= {f"/mnist/{name}": content for name, content in small.items()}
    server.answers[f"/mnist/{second}"] = relabel(small[second], 10)
    with pytest.raises(DataError, match="label 10"):
        mnist(download=True)
    assert [path.name for path in cache.iterdir()] == [first]
    assert mnist().source.startswith("bundled")  # one file of four is not MNIST
    server.answers[f"/mnist/{second}"] = small[second]
    server.asked.clear()
    assert len(mnist(download=True).train) == 20
    assert f"/mnist/{first}" not in server.asked


def test_downloads_go_to_https_addresses():
    assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in digits.MIRRORS)
