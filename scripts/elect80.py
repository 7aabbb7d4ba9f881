"""Read the table `elect80` out of Debian's package r-cran-spdata. Needs the PyPI package rdata."""

import io
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SHARES = ("pc_turnout", "pc_college", "pc_homeownership", "pc_income")
DATABASE = "./usr/lib/R/site-library/spData/data/Rdata"


@dataclass(frozen=True)
class Elect80:
    """One row a county: its FIPS code, the four shares in the order of SHARES, and degrees (longitude, latitude)."""

    fips: list[str]
    shares: np.ndarray
    degrees: np.ndarray


def read_elect80(package: Path) -> Elect80:
    import rdata  # only this script needs it

    with tarfile.open(fileobj=io.BytesIO(ar_member(package.read_bytes(), b"data.tar"))) as tar:
        index, database = (_content(tar, DATABASE + suffix) for suffix in (".rdx", ".rdb"))
    # R's lazy-load database: the index (gzipped) gives the offset and length of each object, and an object is
    # its unpacked size in four bytes followed by a zlib stream.
    variables = rdata.conversion.convert(rdata.parser.parse_data(zlib.decompress(index, wbits=47)))[
        "variables"
    ]
    offset, length = (int(number) for number in variables["elect80"])
    stored = database[offset : offset + length]
    serialized = zlib.decompress(stored[4:])
    if len(serialized) != int.from_bytes(stored[:4], "big"):
        raise SystemExit("elect80 has another size than its index says")
    slots = _attributes(rdata.parser.parse_data(serialized, extension=".rds").object)
    frame = slots["data"]
    names = [name.value.decode() for name in _attributes(frame)["names"].value]
    columns = dict(zip(names, (column.value for column in frame.value), strict=True))
    return Elect80(
        fips=[text.value.decode() for text in columns["FIPS"]],
        shares=np.column_stack([columns[name] for name in SHARES]),
        degrees=np.asarray(slots["coords"].value).reshape(2, -1).T,  # R stores matrices by column
    )


def ar_member(archive: bytes, prefix: bytes) -> bytes:
    """The first member of a Unix ar archive (a .deb is one) whose name starts with `prefix`."""
    position = len(b"!<arch>\n")
    while position < len(archive):
        header = archive[position : position + 60]
        size = int(header[48:58])
        if header.startswith(prefix):
            return archive[position + 60 : position + 60 + size]
        position += 60 + size + size % 2
    raise SystemExit(f"no member {prefix!r} in the package")


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    if member is None:
        raise SystemExit(f"{name} is no file in the package")
    return member.read()


def _attributes(node) -> dict:
    """An R object's attributes, which are a linked list of (tag, value)."""
    attributes, pair = {}, node.attributes
    while pair is not None and pair.info.type.name == "LIST":
        symbol = pair.tag if pair.tag.info.type.name == "SYM" else pair.tag.referenced_object
        attributes[symbol.value.value.decode()], pair = pair.value
    return attributes
