"""CSV files as they come, and the line that each bad one gets."""

import bz2
import csv
import gzip
import io
import lzma
import zipfile

import pytest
from hypothesis import given, strategies as st

from bilevel.cleaning.cells import number
from bilevel.cleaning.table import TableError, labels_of, read_table


@pytest.fixture
def table(tmp_path):
    """A table from text or bytes."""

    def table(content, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_table(path)

    return table


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_found(table, separator):
    text = "a,b,c\n1,x y,3\n4,,6\n".replace(",", separator)
    found = table(text)
    assert found.separator == separator
    assert found.header == ("a", "b", "c")
    assert found.rows == [["1", "x y", "3"], ["4", "", "6"]]
    assert found.column("b") == ["x y", ""]


def test_a_column_is_found_without_a_search_of_the_header(table):
    """A search for each column would take quadratic time."""

    class Name(str):
        compared = 0

        def __eq__(self, other):
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = [f"c{i}" for i in range(200)]
    found = table(f"{','.join(names)}\n{','.join('1' * 200)}\n")
    assert [found.index(Name(name)) for name in names] == list(range(200))
    assert Name.compared <= 2 * len(names)


def test_a_comma_inside_quotes_separates_nothing(table):
    assert table('"a, b, c";d\n1;2\n').header == ("a, b, c", "d")


def test_a_byte_order_mark_empty_lines_and_windows_line_ends(table):
    found = table(b"\xef\xbb\xbfa,b\r\n\r\n1,2\r\n\r\n3,4\r\n\r\n")
    assert found.header == ("a", "b")
    assert found.rows == [["1", "2"], ["3", "4"]]
    assert found.lines == [3, 5]


def test_a_cell_of_several_lines_counts_as_one_row(table):
    found = table('a,b\n"one\ntwo",2\n3,4\n')
    assert found.rows == [["one\ntwo", "2"], ["3", "4"]]
    assert found.lines == [2, 4]


def test_a_column_without_a_name_is_called_by_its_number(table):
    assert table(",a,\n0,1,2\n").header == ("column 1", "a", "column 3")


@pytest.mark.slow
@given(
    st.lists(
        st.lists(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=3, max_size=3
        ),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_the_csv_module_writes_is_read_back(tmp_path_factory, rows):
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerows([["a", "b", "c"], *rows])
    path = tmp_path_factory.mktemp("round") / "data.csv"
    path.write_bytes(text.getvalue().encode())
    assert read_table(path).rows == rows


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.csv", "a,b\n1,2\n")
    return file.getvalue()


BAD = {
    "gzip": (gzip.compress(b"a,b\n1,2\n"), ["compressed with gzip", "gunzip -c", "data.csv > unpacked.csv"]),
    "bzip2": (bz2.compress(b"a,b\n1,2\n"), ["compressed with bzip2", "bunzip2 -c"]),
    "empty bzip2": (bz2.compress(b""), ["compressed with bzip2"]),
    "xz": (lzma.compress(b"a,b\n1,2\n"), ["compressed with xz", "xz -dc"]),
    "zstd": (b"\x28\xb5\x2f\xfd\x04\x00A\x00\x00a,b\n1,2\n", ["compressed with zstd", "zstd -dc"]),
    "zip": (zipped(), ["zip archive", "save the sheet as CSV", "unpack the archive"]),
    "old workbook": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), ["(.xls)", "save the sheet as CSV"]),
    "parquet": (b"PAR1\x15\x00\n\x15PAR1", ["Parquet", "pandas.read_parquet('"]),
    "latin1": (b"a,b\n1,2\n3,caf\xe9\n", ["not UTF-8", "0xe9", "line 3", "byte 14", "iconv"]),
    "latin1 behind a mark": (b"\xef\xbb\xbfa,b\n1,caf\xe9\n", ["not UTF-8", "0xe9", "line 2", "byte 13"]),
    "utf-16": ("a,b\n1,2\n".encode("utf-16"), ["not UTF-8 but UTF-16", "iconv"]),
    "nul": (b"a,b\n1,2\n3,\x00\n", ["line 3", "NUL"]),
    "short row": ("a,b,c\n1,2,3\n4,5\n", ["line 3", "2 cells", "header has 3", "commas for empty cells"]),
    "long row": ("a;b\n1;2\n3;4;5\n", ["line 3", "3 cells", "header has 2", "contain a semicolon"]),
    "long row after a cell of two lines": ('a,b\n"x\ny",2\n3,4,5\n', ["line 4", "3 cells"]),
    "same name twice": ("a,b,a\n1,2,3\n", ["two columns named 'a'", "number 1 and 3", "rename"]),
    "open quote": ('a,b\n1,2\n3,"4\n', ["line 3", "quotation mark"]),
    "empty": ("", ["is empty"]),
    "blank": (" \n\n", ["is empty"]),
    "no rows": ("a,b\n", ["header but no rows"]),
    "one column": ("a\n1\n2\n", ["one column only", "commas, semicolons, tabs or bars"]),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_says_where_and_what_to_do(table, name):
    content, words = BAD[name]
    with pytest.raises(TableError) as caught:
        table(content)
    message = str(caught.value)
    assert "data.csv" in message
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("header", ["BZh9", "PAR1", "PK"])
def test_a_header_that_only_looks_like_another_format(table, header):
    assert table(f"{header},b\n1,2\n").header == (header, "b")


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("5 %", 5),
        ("5%", 5),
        (" 5 % ", 5),
        ("5 $%", 5),
        ("€ 5", 5),
        ("5 %$", None),
        ("5 %%", None),
        ("% 5", None),
    ],
)
def test_numbers_with_units(cell, value):
    assert number(cell) == value


def test_a_cell_of_spaces_is_read_in_one_pass():
    """A pattern that begins again at every space takes minutes here."""
    assert number(f"x{' ' * 130_000}x") is None


def test_a_file_that_is_not_there(tmp_path):
    (tmp_path / "data.csv").write_text("a,b\n")
    with pytest.raises(TableError, match=r"there is no file .*dota\.csv: did you mean .*data\.csv\?"):
        read_table(tmp_path / "dota.csv")
    with pytest.raises(TableError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(TableError, match="there is no file"):
        read_table(tmp_path / "no" / "folder.csv")


def test_a_column_that_is_not_there(table):
    found = table("age,Color,city\n1,2,3\n")
    with pytest.raises(TableError, match="no label column 'color': did you mean 'Color'"):
        found.index("color", "label column")
    with pytest.raises(TableError, match="it has 'age', 'Color', 'city'"):
        found.index("zzzzzz")


def test_labels_that_are_missing_are_counted_and_named(table):
    found = table("x,y\n1,a\n2,\n3, NaN\n4,none\n5,b\n6,null\n")
    with pytest.raises(TableError, match=r"'y' is empty or NaN in 3 of 6 rows \(lines 3, 4, 7\)"):
        labels_of(found, "y")
    assert labels_of(table("x,y\n1, a \n2,none\n"), "y") == ["a", "none"]
