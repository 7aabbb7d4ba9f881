"""The Omniglot loader on small archives made here, and on the real ones where BILEVEL_DATA has them."""

import hashlib
import io
import zipfile

import numpy as np
import pytest
from matplotlib.image import imsave

from bilevel.data import characters as module
from bilevel.data.characters import ARCHIVES, Archive, omniglot, shrunk
from bilevel.data.files import DataError

CHARACTERS = {"Greek": 2, "Latin": 1}, {"Greek": 2, "Latin": 1, "Tagalog": 3}  # of the two archives


def ink(alphabet: str, character: int, drawer: int) -> np.ndarray:
    """The same drawing for the same three, whichever archive it is in."""
    rng = np.random.default_rng([len(alphabet), ord(alphabet[0]), character, drawer])
    return rng.random((105, 105)) < 0.1


def png(drawing: np.ndarray) -> bytes:
    stream = io.BytesIO()
    imsave(stream, ~drawing, cmap="gray", format="png")
    stream.seek(0)
    return as_gray(stream)


def as_gray(stream: io.BytesIO) -> bytes:
    """One bit a pixel, as the originals have it."""
    from PIL import Image

    packed = io.BytesIO()
    Image.open(stream).convert("1").save(packed, format="png")
    return packed.getvalue()


def zipped(number: int, files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(f"images_background_small{number}/", b"")
        for name, content in files.items():
            archive.writestr(f"images_background_small{number}/{name}", content)
    return stream.getvalue()


@pytest.fixture(scope="module")
def files():
    """By archive: the names and contents of its pictures, in an order that is not sorted."""
    made = [
        {
            f"{alphabet}/character{c + 1:02}/{c:04}_{d + 1:02}.png": png(ink(alphabet, c, d))
            for d in range(20)
            for alphabet, count in alphabets.items()
            for c in range(count)
        }
        for alphabets in CHARACTERS
    ]
    return made


@pytest.fixture
def folder(files, monkeypatch, tmp_path):
    """A folder with both archives, whose digests are the expected ones."""
    expected = []
    for archive, alphabets in zip(ARCHIVES, CHARACTERS, strict=True):
        each = sorted((alphabet, c) for alphabet, count in alphabets.items() for c in range(count))
        bits = np.packbits(np.stack([ink(*one, d) for one in each for d in range(20)]))
        expected.append(Archive(archive.name, len(each), hashlib.sha256(bits.tobytes()).hexdigest()))
    monkeypatch.setattr(module, "ARCHIVES", tuple(expected))
    for number, archive in enumerate(expected, start=1):
        (tmp_path / archive.name).write_bytes(zipped(number, files[number - 1]))
    return tmp_path


@pytest.mark.slow
def test_characters_in_both_archives_count_once(folder, no_network):
    data = omniglot(folder, size=105)
    assert data.names == (
        *("Greek/character01", "Greek/character02", "Latin/character01"),
        *("Tagalog/character01", "Tagalog/character02", "Tagalog/character03"),
    )
    assert data.images.dtype == np.float32
    assert data.source == f"Omniglot from {folder}"
    for name, drawings in zip(data.names, data.images, strict=True):
        alphabet, character = name.split("/character")
        expected = [ink(alphabet, int(character) - 1, d) for d in range(20)]
        np.testing.assert_array_equal(drawings, expected)


def test_drawings_are_shrunk_by_areas():
    rng = np.random.default_rng(0)
    images = rng.random((3, 2, 105, 105)).astype(np.float32)
    blocks = images.reshape(3, 2, 21, 5, 21, 5).mean(axis=(3, 5))
    np.testing.assert_allclose(shrunk(images, 21), blocks, rtol=1e-5)
    np.testing.assert_array_equal(shrunk(images, 105), images)
    # 4 does not divide 15: every old pixel is cut into 4 × 4, and every new one made of 15 × 15 of those
    small = images[0, 0, :15, :15]
    fine = np.kron(small, np.ones((4, 4), np.float32))
    np.testing.assert_allclose(shrunk(small, 4), fine.reshape(4, 15, 4, 15).mean(axis=(1, 3)), rtol=1e-5)


@pytest.mark.slow
def test_characters_are_split_without_overlap(folder):
    data = omniglot(folder, size=15)
    first, second = data.split(2, 3, seed=0)
    assert (len(first), len(second)) == (2, 3)
    assert not set(first.names) & set(second.names)
    for part in (first, second):
        rows = [data.names.index(name) for name in part.names]
        np.testing.assert_array_equal(part.images, data.images[rows])
    assert data.split(2, 1, seed=0)[0].names == first.names
    for sizes in ((), (4, 3)):
        with pytest.raises(ValueError, match="but there are 6"):
            data.split(*sizes, seed=0)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda files: dict(list(files.items())[1:]), "holds 59 drawings of 3 characters, expected 3"),
        (lambda files: files | {"Greek/character01/../../x.png": b""}, "another archive"),
        (lambda files: files | {"Greek/character01/0000_01.png": b"\0" * 5000}, "of 5,000 bytes"),
        (
            lambda files: files | {"Greek/character01/0000_01.png": b"GIF89a"},
            "0000_01.png: is no PNG picture",
        ),
        (lambda files: files | {"Greek/character01/0000_01.png": png(ink("Greek", 0, 7))}, "other pixels"),
        (
            lambda files: files | {"Greek/character01/0000_01.png": huge(png(ink("Greek", 0, 7)))},
            "of 105 × 105 pixels",
        ),
        (
            lambda files: files | {"Greek/character01/0000_01.png": png(np.ones((9, 9), bool))},
            "of 105 × 105 pixels",
        ),
    ],
    ids=[
        "one missing",
        "a strange path",
        "too large",
        "no picture",
        "another picture",
        "a huge one",
        "another shape",
    ],
)
def test_a_spoilt_archive_is_named(folder, files, spoil, message):
    path = folder / ARCHIVES[0].name
    path.write_bytes(zipped(1, spoil(files[0])))
    with pytest.raises(DataError, match=message) as caught:
        omniglot(folder)
    assert str(path) in str(caught.value)


def test_a_cut_off_or_damaged_archive_is_named(folder):
    path = folder / ARCHIVES[1].name
    whole = path.read_bytes()
    middle = len(whole) // 3
    flipped = (
        whole[:middle] + bytes(255 - byte for byte in whole[middle : middle + 40]) + whole[middle + 40 :]
    )
    for content in (whole[:-100], b"<html></html>", b"", flipped):
        path.write_bytes(content)
        with pytest.raises(DataError, match="get a fresh copy"):
            omniglot(folder)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_packed_otherwise_is_refused(folder, files, method):
    """Their damage would be told by errors of many kinds."""
    path, packed = folder / ARCHIVES[0].name, io.BytesIO()
    with zipfile.ZipFile(path) as given, zipfile.ZipFile(packed, "w", method) as made:
        for entry in given.infolist():
            made.writestr(entry.filename, given.read(entry))
    path.write_bytes(packed.getvalue())
    with pytest.raises(DataError, match="packed in an unusual way"):
        omniglot(folder)


def huge(picture):
    """A PNG that says of itself to have 2³¹ − 1 rows of as many pixels."""
    side = (2**31 - 1).to_bytes(4, "big")
    return picture[:16] + side + side + picture[24:]


def test_what_is_missing_is_said(folder, tmp_path, no_network):
    with pytest.raises(DataError, match=r"bl\.data\.omniglot\(download=True\)") as caught:
        omniglot()
    assert "\n" not in str(caught.value)
    (folder / ARCHIVES[1].name).unlink()
    with pytest.raises(DataError, match=r"lacks omniglot_images_background_small2\.zip"):
        omniglot(folder)


@pytest.mark.parametrize("size", [0, 106, 2.5])
def test_a_size_that_does_not_fit(size, as_users_see_it):
    with pytest.raises((TypeError, ValueError), match="size"):
        omniglot(size=size)


def test_download_fills_the_cache_once(folder, server, cache, monkeypatch):
    monkeypatch.setattr(module, "MIRROR", server.address + "/")
    for archive in module.ARCHIVES:
        server.answers["/" + archive.name.removeprefix("omniglot_")] = (folder / archive.name).read_bytes()
    assert omniglot(size=15, download=True).source == f"Omniglot from the cache ({cache})"
    assert server.asked == ["/images_background_small1.zip", "/images_background_small2.zip"]
    assert len(omniglot(size=15)) == 6
    assert len(server.asked) == 2


def test_downloads_go_to_https_addresses():
    assert module.MIRROR.startswith("https://")
    assert module.MIRROR.endswith("/")


@pytest.mark.slow
def test_the_real_archives(reference, no_network):
    if not all((reference / archive.name).is_file() for archive in ARCHIVES):
        pytest.skip("BILEVEL_DATA has no Omniglot")
    data = omniglot(reference, size=21)
    assert data.images.shape == (242, 20, 21, 21)
    alphabets = [name.split("/")[0] for name in data.names]
    counts = {"Balinese": 24, "Early_Aramaic": 22, "Greek": 24, "Japanese_(katakana)": 47, "Korean": 40}
    counts |= {"Latin": 26, "Sanskrit": 42, "Tagalog": 17}
    assert {name: alphabets.count(name) for name in alphabets} == counts
    assert 0.02 < data.images.mean() < 0.2  # ink is 1, and there is less of it than of paper
    assert len({drawing.tobytes() for drawing in data.images.reshape(-1, 21, 21)}) == 242 * 20
