"""Omniglot: handwritten characters of many alphabets, each drawn by twenty people."""

import hashlib
import io
import re
import zipfile
import zlib
from dataclasses import dataclass, replace

import numpy as np

from bilevel.checks import check_count, check_flag, check_generator

from .directories import DataFile, Directory, load
from .files import DataError

SIDE, DRAWERS = 105, 20
LARGEST_ARCHIVE = 16 * 1024 * 1024  # bytes; the larger of the two has 1,580,917
LARGEST_IMAGE = 4096  # bytes; the largest has 419
DRAWING = re.compile(r"images_background_small\d/([^/]+)/(character\d\d)/\d{4}_(\d\d)\.png")
MIRROR = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"
PACKED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
PREFIX = "omniglot_"  # of local files: "images_background_small1.zip" is too general for a shared folder


@dataclass(frozen=True)
class Archive(DataFile):
    """File of the data set: its name, its number of characters, and the SHA-256 of their pixels as bits."""

    characters: int
    sha256: str

    def parse(self, content: bytes, label: str) -> dict[tuple[str, str], np.ndarray]:
        """Return twenty drawings of 105 × 105, true for ink, by alphabet and character."""
        drawings = _drawings(content, label)
        characters: dict[tuple[str, str], list[np.ndarray]] = {}
        for alphabet, character, drawer in sorted(drawings):
            characters.setdefault((alphabet, character), []).append(drawings[alphabet, character, drawer])
        if len(characters) != self.characters or {len(rows) for rows in characters.values()} != {DRAWERS}:
            raise DataError(
                f"{label}: holds {len(drawings)} drawings of {len(characters)} characters, expected "
                f"{self.characters} characters with {DRAWERS} drawings each; this is another archive"
            )
        found = {key: np.stack(rows) for key, rows in characters.items()}
        # The digest is of the pixels: a copy that was packed again has the same data.
        digest = hashlib.sha256(np.packbits(np.concatenate(list(found.values()))).tobytes()).hexdigest()
        if digest != self.sha256:
            raise DataError(
                f"{label}: has the form of Omniglot's {self.name} but other pixels (SHA-256 {self.sha256[:12]}... "
                "expected); it is damaged or another data set: replace it by a fresh copy"
            )
        return found


SHA256 = (
    "3d758fccc2c901be720c3bcb42baf84f8ee80190203b06f7217ff6d5b8c85bab",
    "e99be4aa829997ff6b2d6e8d8f330fe3895b34c0790184da626a0957418b40aa",
)
ARCHIVES = (
    Archive(f"{PREFIX}images_background_small1.zip", 136, SHA256[0]),
    Archive(f"{PREFIX}images_background_small2.zip", 156, SHA256[1]),
)


@dataclass(frozen=True, eq=False)
class Omniglot:
    """Drawings: `images[c, d]` is character `names[c]` by person d, float32 in [0, 1], 1 is ink."""

    images: np.ndarray  # characters × 20 × size × size
    names: tuple[str, ...]  # such as "Greek/character01"
    source: str

    def __len__(self) -> int:
        return len(self.names)

    def split(self, *sizes: int, seed: int | np.random.Generator) -> tuple["Omniglot", ...]:
        """Return disjoint sets with these numbers of characters. The other characters are in no set."""
        counts = [check_count(size, "the number of characters in a set") for size in sizes]
        if not counts or sum(counts) > len(self):
            raise ValueError(
                f"sizes {sizes} need {sum(counts)} characters, but there are {len(self)}: name at least one set, and "
                f"no more than {len(self)} characters in all"
            )
        sets = np.split(check_generator(seed).permutation(len(self)), np.cumsum(counts))[:-1]
        part = lambda r: replace(self, images=self.images[r], names=tuple(self.names[i] for i in r))
        return tuple(map(part, sets))


def omniglot(directory: Directory = None, *, size: int = 28, download: bool = False) -> Omniglot:
    """Return the 242 characters of Omniglot's two small sets, from a folder, the cache or the network.

    The folder is `directory` (or `$BILEVEL_DATA`). The network is used only with `download=True`. None of it
    is bundled.

    Greek and Latin are in both archives and are returned once. Drawings are shrunk from 105 × 105 to `size` ×
    `size`: a new pixel is the mean over its area. B. Lake, R. Salakhutdinov, J. Tenenbaum, "Human-level
    concept learning through probabilistic program induction", Science 2015; MIT license.
    """
    check_flag(download, "download")
    if check_count(size, "size") > SIDE:
        pixels = f"the drawings have {SIDE} × {SIDE} pixels"
        raise ValueError(f"size={size}: {pixels}; pass at most {SIDE}, such as 28")
    urls = (lambda name: [MIRROR + name.removeprefix(PREFIX)]) if download else None
    found = load(ARCHIVES, directory, LARGEST_ARCHIVE, urls)
    if found is None:
        raise DataError(
            "Omniglot is not bundled and not in the cache: get it once (3 MB) by "
            'python -c "import bilevel as bl; bl.data.omniglot(download=True)", or set '
            f"BILEVEL_DATA to a folder with {' and '.join(archive.name for archive in ARCHIVES)}"
        )
    characters: dict[tuple[str, str], np.ndarray] = {}
    parts, place = found
    for archive, part in zip(ARCHIVES, parts, strict=True):
        for key, drawings in part.items():
            if key in characters and not np.array_equal(characters[key], drawings):
                where = f"{place}, {archive.name}: its {'/'.join(key)}"
                raise DataError(f"{where} differs from the other archive's; get both again")
            characters[key] = drawings
    keys = sorted(characters)
    names = tuple("/".join(key) for key in keys)
    images = shrunk(np.stack([characters[key] for key in keys]), size)
    return Omniglot(images, names, f"Omniglot from {place}")


def shrunk(images: np.ndarray, size: int) -> np.ndarray:
    """Return A image Aᵀ for images on the last two axes; A_ij is the share of old row j in new row i."""
    side = images.shape[-1]
    edges = np.arange(size + 1) * side / size
    low, high = edges[:-1, None], edges[1:, None]
    old = np.arange(side)[None, :]
    shares = np.clip(np.minimum(high, old + 1) - np.maximum(low, old), 0, None) * size / side
    A = shares.astype(np.float32)
    return A @ images.astype(np.float32) @ A.T


def _drawings(content: bytes, name: str) -> dict[tuple[str, str, str], np.ndarray]:
    """Return every picture in the archive by alphabet, character and drawer. Unpack nothing to disk."""
    found = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for entry in archive.infolist():
                if entry.is_dir():
                    continue
                match = DRAWING.fullmatch(entry.filename)
                if entry.compress_type not in PACKED:
                    raise DataError(f"{name}: is packed in an unusual way; get a fresh copy")
                if match is None or entry.file_size > LARGEST_IMAGE:
                    raise DataError(
                        f"{name}: holds {entry.filename[:80]!r} of {entry.file_size:,} bytes, expected small drawings "
                        "such as images_background_small1/Greek/character01/0394_01.png; this is another archive"
                    )
                found[match.groups()] = _picture(archive.read(entry), f"{name}, {entry.filename}")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        problem = f"is no zip archive, cut off or damaged ({error})"
        raise DataError(f"{name}: {problem}; get a fresh copy") from error
    return found


def _picture(content: bytes, name: str) -> np.ndarray:
    """Return True for ink, which is black on white in the files."""
    from matplotlib.image import imread

    sides = tuple(int.from_bytes(content[i : i + 4], "big") for i in (16, 20))  # from the header
    if sides != (SIDE, SIDE):
        raise DataError(
            f"{name}: is no PNG picture of {SIDE} × {SIDE} pixels; this is another data set, or a damaged copy"
        )
    try:
        gray = imread(io.BytesIO(content), format="png")
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{name}: is no PNG picture ({error}); get a fresh copy of the archive") from error
    if gray.shape != (SIDE, SIDE):
        problem = f"is a picture of shape {gray.shape}, expected {(SIDE, SIDE)}"
        raise DataError(f"{name}: {problem}; this is another data set")
    return gray < 0.5
