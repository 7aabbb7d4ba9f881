"""`bilevel clean`, as a user types it. Where the ranking itself does not matter, it is by distance to class means."""

import csv
import errno
import os
import re
import signal
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

from bilevel import atomic_files
from bilevel.cli import app, clean
from bilevel.locks import Lock
from bilevel.row_weights import fit as weighing


class Ranked(NamedTuple):
    weights: np.ndarray
    suspicion: np.ndarray
    probabilities: np.ndarray
    predict: object


def by_class_means(inputs, labels, trusted_inputs, trusted_labels, classes, **_):
    """A ranking anyone can check: probabilities fall with the distance to the mean of the trusted rows of a class."""
    means = np.stack([trusted_inputs[trusted_labels == k].mean(axis=0) for k in range(classes)])

    def predict(rows):
        scores = -((rows[:, None] - means[None]) ** 2).sum(axis=2).astype(float)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    found = predict(inputs)
    own = found[np.arange(len(labels)), labels]
    return Ranked(own, 1 - own, found, predict)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def call(here, monkeypatch):
    monkeypatch.setattr(weighing, "weigh", by_class_means)
    return lambda *arguments: CliRunner().invoke(app, ["clean", *arguments])


def said(result) -> str:
    return "".join(line for line in result.stderr.splitlines(keepends=True) if line.strip())


def rows(count, wrong=(), seed=0):
    """Two classes far apart; the rows numbered in `wrong` have the label of the other."""
    rng = np.random.default_rng(seed)
    truth = np.arange(count) % 2
    for i, y in enumerate(truth):
        given = 1 - y if i in wrong else y
        yield [f"{10 * y + rng.normal():.3f}", ["red", "blue"][y], ["no", "yes"][given]]


def save(name, header, body, separator=","):
    with open(name, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator).writerows([header, *body])


def load(path, separator=","):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=separator))


HEADER = ["size", "color", "kind"]
WRONG = (3, 17, 40)
USUAL = ("data.csv", "--label", "kind", "--trusted", "trusted.csv", "--out", "here")


@pytest.fixture
def files(here):
    save("data.csv", HEADER, rows(60, WRONG))
    save("trusted.csv", HEADER, rows(20, seed=1))


def test_the_wrong_labels_come_first_with_their_suggestions(call, files, tmp_path):
    result = call(*USUAL)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir("here")) == ["ranked.csv", "report.html", "weights.csv"]
    ranked = load("here/ranked.csv")
    assert {int(row["row"]) for row in ranked[:3]} == {i + 1 for i in WRONG}
    assert len(ranked) == 60
    original = load("data.csv")
    for row in ranked:
        assert {name: row[name] for name in HEADER} == original[int(row["row"]) - 1]
        assert row["given_label"] == row["kind"]
        assert (row["suggested_label"] != row["kind"]) == (int(row["row"]) - 1 in WRONG)
        assert 0.5 <= float(row["suggested_probability"]) <= 1
    doubts = [float(row["suspicion"]) for row in ranked]
    assert doubts == sorted(doubts, reverse=True)
    weights = load("here/weights.csv")
    assert [int(row["row"]) for row in weights] == list(range(1, 61))
    assert {int(row["row"]) - 1 for row in weights if float(row["weight"]) < 0.5} == set(WRONG)
    assert "The 10 most suspicious of 60 rows" in result.stdout
    assert "ROC-AUC 1.000" in " ".join(result.stdout.split())
    assert "Written: here/ranked.csv, here/weights.csv, here/report.html" in result.stdout


def test_the_same_from_a_column_that_marks_the_trusted(call, files):
    marked = [[*row, ""] for row in rows(60, WRONG)]
    marked += [
        [*row, mark] for row, mark in zip(rows(20, seed=1), ["true", "1", "Yes", "TRUE"] * 5, strict=True)
    ]
    save("both.csv", [*HEADER, "checked"], marked)
    assert call(*USUAL).exit_code == 0
    result = call("both.csv", "--label", "kind", "--trusted-column", "checked", "--out", "there")
    assert result.exit_code == 0, result.output
    apart, together = load("here/ranked.csv"), load("there/ranked.csv")
    assert {row["row"] for row in together[:3]} == {row["row"] for row in apart[:3]}
    assert len(together) == 80
    assert {int(row["row"]) for row in together[60:]} == set(range(61, 81))  # trusted: last, and not judged
    assert all(row["suspicion"] == "" and row["weight"] == "1" for row in together[60:])
    assert [row["weight"] for row in load("there/weights.csv")[60:]] == ["1"] * 20


def test_rows_that_are_trusted_as_well_are_not_judged(call, files):
    """Somebody checked rows of the table and copied them: two of the wrong ones, put right, and eight right ones."""
    checked = list(rows(60))  # with their true labels
    save("trusted.csv", HEADER, [*rows(20, seed=1), *(checked[i] for i in (3, 17, *range(20, 28)))])
    result = call(*USUAL)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "10 rows of the table are also among the trusted ones, and not judged." in said
    assert "2 rows of the table have another label than the trusted copy: line 5, 19." in said
    ranked = load("here/ranked.csv")
    assert int(ranked[0]["row"]) == 41
    assert {int(row["row"]) - 1 for row in ranked if row["suspicion"] == ""} == {3, 17, *range(20, 28)}
    assert "another label than the trusted copy" in Path("here/report.html").read_text(encoding="utf-8")


def test_rows_that_look_alike_need_not_be_the_same(call, here):
    coarse = lambda count, seed: [[str(i % 3), "ab"[i % 2], "no" if i % 2 else "yes"] for i in range(count)]
    save("data.csv", HEADER, coarse(60, 0))
    save("trusted.csv", HEADER, coarse(20, 1))
    result = call(*USUAL)
    assert result.exit_code == 0, result.output
    assert "also among the trusted" not in result.stdout


def test_the_table_itself_is_no_trusted_file(call, files):
    result = call("data.csv", "--label", "kind", "--trusted", "data.csv", "--out", "here")
    assert result.exit_code == 2
    assert "every row of data.csv is also in data.csv" in said(result)


@pytest.mark.parametrize(("theirs", "ours"), [(".", ","), (",", ".")])
def test_trusted_rows_written_with_another_decimal_sign(call, here, theirs, ours):
    written = lambda body, sign: [[size.replace(".", sign), *rest] for size, *rest in body]
    save("data.csv", HEADER, written(rows(60, WRONG), ours), ";")
    save("trusted.csv", HEADER, written(rows(20, seed=1), theirs), ";")
    result = call(*USUAL)
    assert result.exit_code == 2
    assert "trusted.csv, line 2: " in said(result)
    assert "in 'size' is no number" in said(result)
    assert "write both files alike" in said(result)


def test_values_that_only_trusted_rows_have_are_told(call, files):
    body = [
        [size, "green" if i < 2 else color, kind] for i, (size, color, kind) in enumerate(rows(20, seed=1))
    ]
    save("trusted.csv", HEADER, body)
    result = call(*USUAL)
    assert result.exit_code == 0
    assert "'color' is a value of no row of the data: 'green'" in " ".join(result.stdout.split())


def test_notes_have_the_order_of_the_file(call, files):
    """The order of a set changes with every process, and so would the report."""
    names = [f"shade {i}" for i in range(5, 0, -1)]
    data = [[*rest, f"{kind}{i % 4}"] for i, (*rest, kind) in enumerate(rows(80))]
    upper = [[*rest, kind.upper()] for *rest, kind in data]
    save("data.csv", HEADER, [*data, *upper])
    right = [[size, names[i % 5], kind] for i, (size, _, kind) in enumerate(data[:40] + upper[:40])]
    save("trusted.csv", HEADER, [[f"{size}1", color, kind] for size, color, kind in right])
    result = call(*USUAL)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert f"of no row of the data: {', '.join(map(repr, names))}." in text
    alike = re.findall(r"count as different: '(\w+)'", text)
    assert alike == ["NO0", "YES1", "NO2", "YES3"]


@pytest.mark.parametrize(("theirs", "hint"), [("1.0", "did you mean '1'?"), ("0.0", "did you mean '0'?")])
def test_trusted_labels_written_in_another_way(call, here, theirs, hint):
    code = lambda body, zero, one: [[*rest, one if kind == "yes" else zero] for *rest, kind in body]
    save("data.csv", HEADER, code(rows(60, WRONG), "0", "1"))
    zero, one = ("0", "1.0") if theirs == "1.0" else ("0.0", "1")
    save("trusted.csv", HEADER, code(rows(20, seed=1), zero, one))
    result = call(*USUAL)
    assert result.exit_code == 2
    assert hint in said(result)


def test_labels_that_differ_in_writing_only_are_told(call, files):
    body = [[*rest, "YES" if i == 0 else kind] for i, (*rest, kind) in enumerate(rows(60, WRONG))]
    save("data.csv", HEADER, [*body[:1], *body])
    save("trusted.csv", HEADER, [*rows(20, seed=1), *([*rest, "YES"] for *rest, _ in rows(5, seed=2))])
    result = call(*USUAL)
    assert result.exit_code == 0, result.output
    assert "Labels that differ only in writing count as different: 'YES', 'yes'." in " ".join(
        result.stdout.split()
    )


@pytest.mark.parametrize("link", ["data.csv", "trusted.csv"])
def test_no_file_that_is_read_is_written_through_a_link(call, files, link):
    os.mkdir("here")
    os.rename(link, "here/weights.csv")
    os.symlink("here/weights.csv", link)
    before = Path("here/weights.csv").read_text()
    result = call(*USUAL)
    assert result.exit_code == 2
    assert "would be overwritten" in said(result)
    assert Path("here/weights.csv").read_text() == before


def test_files_are_written_before_anything_is_printed(call, files, monkeypatch):
    """Whoever reads the output may leave early, as `head` does."""
    monkeypatch.setattr(clean, "_table", lambda found: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        raise call(*USUAL).exception
    assert sorted(os.listdir("here")) == ["ranked.csv", "report.html", "weights.csv"]


def test_lines_that_excel_writes_and_workbooks(call, files):
    for name in ("data.csv", "trusted.csv"):
        Path(name).write_bytes(b"sep=,\r\n" + Path(name).read_bytes())
    assert call(*USUAL).exit_code == 0
    Path("data.csv").write_bytes(b"PK\x03\x04 and more")
    assert "save the sheet as CSV" in said(call(*USUAL))
    if os.path.exists("/dev/zero"):
        assert "is a device" in said(call("/dev/zero", *USUAL[1:]))


def test_long_cells_are_called_long(call, files):
    Path("data.csv").write_text(Path("data.csv").read_text() + "1.0," + "x" * 140_000 + ",yes\n")
    assert "a cell has more than 131,072 characters" in said(call(*USUAL))


def test_negative_numbers_with_commas_are_not_disarmed(call, here):
    signed = lambda body: [
        [f"-{size}".replace(".", ",").replace("--", ""), color, kind] for size, color, kind in body
    ]
    save("data.csv", HEADER, [*signed(rows(60, WRONG)), ["-", "-", "no"]], ";")
    save("trusted.csv", HEADER, signed(rows(20, seed=1)), ";")
    result = call(*USUAL)
    assert result.exit_code == 0, result.output
    assert "apostrophe" not in result.stdout


@pytest.mark.slow
def test_with_the_weights_themselves(files):
    """The real thing, once: a linear model and few steps."""
    result = CliRunner().invoke(app, ["clean", *USUAL, "--hidden", "0", "--steps", "40", "--no-check"])
    assert result.exit_code == 0, result.output
    assert {int(row["row"]) - 1 for row in load("here/ranked.csv")[:3]} == set(WRONG)


def test_semicolons_and_names_that_are_taken(call):
    header = ["row", "weight", "kind"]
    save("data.csv", header, rows(60, WRONG), ";")
    save("trusted.csv", [*header[::-1], "reviewer"], ([*row[::-1], "me"] for row in rows(20, seed=1)), "\t")
    result = call(*USUAL)
    assert result.exit_code == 0, result.output
    ranked = load("here/ranked.csv", ";")
    assert list(ranked[0])[:3] == ["bilevel_row", "suspicion", "bilevel_weight"]
    assert {int(row["bilevel_row"]) - 1 for row in ranked[:3]} == set(WRONG)
    with open("here/report.html", encoding="utf-8") as page:
        assert "reviewer" in page.read()  # which was not used, and is told


def test_formulas_are_disarmed_and_numbers_are_not(call):
    body = [["=1+1" if i == 3 else "-5" if i % 2 else "@x", *row] for i, row in enumerate(rows(60, WRONG))]
    save("data.csv", ["note", *HEADER], body)
    save("trusted.csv", ["note", *HEADER], (["-5", *row] for row in rows(20, seed=1)))
    result = call(*USUAL)
    assert result.exit_code == 0, result.output
    notes = [row["note"] for row in load("here/ranked.csv")]
    assert sorted(set(notes)) == ["'=1+1", "'@x", "-5"]
    assert "an apostrophe in front in ranked.csv: 31" in result.stdout


def test_a_terminal_obeys_no_cell(call):
    names = {"no": "[red]no[/]", "yes": "\x1b[2Jyes"}
    for name, body in {"data.csv": rows(60, WRONG), "trusted.csv": rows(20, seed=1)}.items():
        save(name, HEADER, ([*row[:2], names[row[2]]] for row in body))
    result = call(*USUAL)
    assert result.exit_code == 0, result.output
    assert "[red]no[/]" in result.stdout
    assert "�[2Jyes" in result.stdout
    assert "\x1b" not in result.stdout


def test_without_the_check(call, files):
    result = call(*USUAL, "--no-check")
    assert result.exit_code == 0, result.output
    assert "ROC-AUC" not in result.stdout


def with_label(column, **at):
    return [[*row[:2], at.get(f"r{i}", row[2])] for i, row in enumerate(column)]


REFUSED = {
    "no such file": (dict(arguments=("dta.csv", *USUAL[1:])), ["no file dta.csv", "did you mean data.csv?"]),
    "no such column": (
        dict(arguments=("data.csv", "--label", "kin", *USUAL[3:])),
        ["'kin'", "did you mean 'kind'?"],
    ),
    "no trusted rows named": (dict(arguments=USUAL[:3]), ["--trusted FILE or --trusted-column COLUMN"]),
    "both ways": (dict(arguments=(*USUAL, "--trusted-column", "color")), ["either --trusted FILE or"]),
    "no such mark": (
        dict(arguments=("data.csv", "--label", "kind", "--trusted-column", "checkd")),
        ["no column of trusted rows 'checkd'"],
    ),
    "marks that say nothing": (
        dict(arguments=("data.csv", "--label", "kind", "--trusted-column", "color")),
        ["line 2", "'red'", "neither true nor false"],
    ),
    "too few trusted": (
        dict(trusted=list(rows(8))),
        ["too few trusted", "4 of 'no'", "5 of each of the 2", "10 at least"],
    ),
    "one class": (
        dict(data=with_label(rows(60), **{f"r{i}": "no" for i in range(60)})),
        ["all labels", "'no'", "two classes"],
    ),
    "nan label": (dict(data=with_label(rows(60), r3="nan", r9="")), ["in 2 of 60 rows", "lines 5, 11"]),
    "nan trusted label": (
        dict(trusted=with_label(rows(20), r3="")),
        ["trusted.csv", "in 1 of 20 rows", "line 5"],
    ),
    "unknown label": (dict(trusted=with_label(rows(20), r3="Yes")), ["'Yes'", "did you mean 'yes'?"]),
    "continuous": (
        dict(data=[[*row[:2], f"{i * 1.37:.2f}"] for i, row in enumerate(rows(60))]),
        ["60 different values", "'0.00'", "measurement"],
    ),
    "names": (dict(data=[[*row[:2], f"n{i}"] for i, row in enumerate(rows(200))]), ["200 different values"]),
    "other columns": (
        dict(trusted_header=["size", "hue", "kind"]),
        ["trusted.csv lacks the column 'color'", "--ignore"],
    ),
    "no such column to ignore": (dict(arguments=(*USUAL, "--ignore", "colr")), ["'colr'", "'color'"]),
    "ignored label": (dict(arguments=(*USUAL, "--ignore", "kind")), ["'kind' is the label column"]),
    "steps": (dict(arguments=(*USUAL, "--steps", "0")), ["--steps", "not 0"]),
    "own input": (
        dict(arguments=("here/ranked.csv", *USUAL[1:]), data_name="here/ranked.csv"),
        ["here/ranked.csv would be overwritten", "--out"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_with_status_2_and_before_any_work(call, monkeypatch, name):
    case, words = REFUSED[name]
    monkeypatch.setattr(weighing, "weigh", lambda *_, **__: pytest.fail("it was fitted"))
    os.mkdir("here")
    save(case.get("data_name", "data.csv"), HEADER, case.get("data", rows(60, WRONG)))
    save("trusted.csv", case.get("trusted_header", HEADER), case.get("trusted", rows(20, seed=1)))
    before = sorted(os.listdir("here"))
    result = call(*case.get("arguments", USUAL))
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("bilevel: ")
    for word in words:
        assert word in result.stderr
    assert sorted(os.listdir("here")) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"size,color,kind\n1,caf\xe9,no\n", ["not UTF-8", "line 2"]),
        (b"size,color,kind\n1,red\n", ["line 2", "2 cells"]),
        (b"size,size,kind\n1,2,no\n", ["two columns named 'size'"]),
        (b"", ["data.csv is empty"]),
        (b"size,color,kind\n", ["no rows"]),
    ],
)
def test_files_that_are_no_tables(call, files, content, words):
    with open("data.csv", "wb") as file:
        file.write(content)
    result = call(*USUAL)
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in result.stderr


def test_a_folder_in_use(call, files, tmp_path):
    (tmp_path / "here").mkdir()
    lock = Lock(tmp_path / "here")
    try:
        result = call(*USUAL)
    finally:
        lock.close()
    assert result.exit_code == 2
    assert "another bilevel is writing into here" in result.stderr
    (tmp_path / "file").write_text("in the way")
    assert "which is no folder" in call(*USUAL[:-1], "file").stderr


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_leaves_older_files_alone(call, files, tmp_path, monkeypatch, sent, status):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "ranked.csv").write_text("older")
    monkeypatch.setattr(weighing, "weigh", lambda *_, **__: os.kill(os.getpid(), sent))
    result = call(*USUAL)
    assert (result.exit_code, said(result)) == (status, "bilevel: stopped; saved: nothing\n")
    assert [path.read_text() for path in (tmp_path / "here").iterdir()] == ["older"]


def test_a_full_disk(call, files, monkeypatch):
    real = atomic_files.new_part

    def new_part(path):
        if path.suffix == ".html":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path)

    monkeypatch.setattr(atomic_files, "new_part", new_part)
    result = call(*USUAL)
    assert result.exit_code == 3
    assert said(result) == (
        "bilevel: could not save here/report.html (No space left on device); saved: here/ranked.csv, here/weights.csv\n"
    )
    assert "most suspicious" in result.stdout


@pytest.mark.parametrize("option", ["data", "--label", "--trusted", "--out", "--ignore", "--category"])
def test_odd_words_for_every_option(call, files, monkeypatch, option, as_users_see_it):
    monkeypatch.setattr(weighing, "weigh", lambda *_, **__: pytest.fail("it was fitted"))
    for word in ("a\0b", "x" * 5000, "data.csv/below", *(["\ud800", "[/red]"] if option != "--out" else [])):
        given = {"data": "data.csv", "--label": "kind", "--trusted": "trusted.csv", option: word}
        result = call(given.pop("data"), *(part for pair in given.items() for part in pair))
        assert result.exit_code == 2, ascii(word)
        assert len(result.stderr.strip().splitlines()) == 1
