"""The page: hostile cells stay text, nothing is fetched, the numbers are those that were found, and it fits a phone."""

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from bilevel.cleaning.encoding import fit_encoding
from bilevel.cleaning.evaluation import Worth
from bilevel.cleaning.files import disarmed, ranked_csv, weights_csv
from bilevel.cleaning.findings import Findings, tame
from bilevel.cleaning.inputs import known_rows
from bilevel.cleaning.report import as_page, charts
from bilevel.cleaning.table import Table, _header

EVIL = "</bdi><script>alert(1)</script>"
QUOTES = "\"' onmouseover='x"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def findings(count=60, checked=True, classes=(EVIL, "plain"), seed=0) -> Findings:
    rng = np.random.default_rng(seed)
    cell = lambda i: [EVIL, QUOTES, "\u202eabc", "a" * 500, "$file ${x}"][i % 5]
    header = (EVIL, QUOTES, "amount", "long name " * 9, "label")
    given = rng.integers(0, len(classes), size=count)
    rows = [
        [cell(i), cell(i + 1), f"{rng.normal():.4f}", cell(i + 2), classes[given[i]]] for i in range(count)
    ]
    table = Table(Path("<i>data.csv"), header, rows, [2 + i for i in range(count)], ",")
    encoding, _ = fit_encoding(table, "label")
    suspicion = rng.random(count).astype(np.float32)
    hidden = 40
    worth = Worth(
        change=np.arange(hidden) % 3,
        suspicion=np.where(np.arange(hidden) % 3 > 0, 0.9, 0.1) * rng.random(hidden),
        correct=rng.random(hidden) < 0.9,
        disputed=np.where(np.arange(hidden) % 3 > 0, rng.random(hidden) < 0.9, rng.random(hidden) < 0.1),
        weight=np.ones(hidden),
        row=np.arange(count),
        data=suspicion,
        data_disputed=rng.random(count) < 0.3,
        alike=np.arange(hidden) % 3 == 1,
        classes=len(classes),
    )
    return Findings(
        table=table,
        label="label",
        classes=tuple(classes),
        rows=np.arange(count),
        given=given,
        weights=rng.random(count).astype(np.float32),
        suspicion=suspicion,
        probabilities=rng.dirichlet(np.ones(len(classes)), size=count).astype(np.float32),
        encoding=encoding,
        telling=[column.name for column in encoding.columns if column.parts],
        trusted=20,
        worth=worth if checked else None,
        notes=(f"note {EVIL}",),
        made={"data": EVIL},
    )


class Seen(HTMLParser):
    """Every tag, attribute and piece of text of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = set(), set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in {"meta", "rect", "line", "polyline"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in {"meta", "rect", "line", "polyline"}:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def seen():
    seen = Seen()
    seen.feed(as_page(findings()))
    assert seen.open == []  # every tag is closed, in order
    return seen


def test_cells_are_text(seen):
    assert not seen.tags & {"script", "i data.csv", "iframe", "img", "link", "object", "form"}
    assert not any(name.startswith("on") for name in seen.attributes)
    text = "".join(seen.words)
    assert "<script>alert(1)</script>" in text
    assert "$file ${x}" in text
    assert "\u202e" not in text


def test_nothing_is_fetched(seen):
    page = as_page(findings())
    assert not seen.attributes & {"src", "href", "action", "srcset", "background"}
    assert "url(" not in page
    assert "default-src 'none'" in page
    assert "http://" not in page
    assert "https://" not in page


def test_the_numbers_on_the_page_are_those_found(seen):
    found = findings()
    text = " ".join(" ".join(seen.words).split())
    first = found.order[0]
    assert first == int(np.argmax(found.suspicion))
    assert f"{found.suspicion[first]:.3f}" in text
    assert f"{found.worth.area():.3f}" in text
    assert f"{int(found.disputed.sum()):,}" in text
    for column in found.encoding.columns:
        assert tame(column.treatment or "as it is", 400) in "".join(seen.words)


def test_histograms_hold_every_row():
    found = findings(count=137)
    svg = as_page(found).split("<svg")[1].split("</svg>")[0]
    for kind, rows in {"a": found.weights, "b": found.weights[found.disputed]}.items():
        heights = re.findall(
            rf'<rect class="{kind}" x="[\d.]+" y="[\d.]+" width="[\d.]+" height="([\d.]+)"', svg
        )
        counts = np.histogram(rows, np.linspace(0, 1, 21))[0]
        most = np.histogram(found.weights, np.linspace(0, 1, 21))[0].max()
        tallest = charts.down(0) - charts.down(1)
        expected = tallest * np.sqrt(counts[counts > 0] / most)
        np.testing.assert_allclose(np.array(heights, float), expected, atol=0.06)


@pytest.mark.parametrize("options", [dict(checked=False), dict(count=12), dict(classes=("a", "b", "c") * 10)])
def test_pages_of_all_kinds(options):
    seen = Seen()
    seen.feed(as_page(findings(**options)))
    assert seen.open == []


def sentences(found):
    seen = Seen()
    seen.feed(as_page(found))
    return " ".join(" ".join(seen.words).split())


def test_no_share_is_promised_without_an_interval():
    """All labels made wrong come before all rows of the data, but there are few of them."""
    found = findings()
    change = np.arange(40) % 3
    worth = found.worth._replace(
        suspicion=np.where(change > 0, 2.0, -1.0), correct=np.ones(40, bool), disputed=change > 0
    )
    found = replace(found, worth=worth)
    wrong = found.expected[0]
    assert wrong
    low, high = worth.found_interval(wrong / 60, wrong)
    assert 0.5 < low < 1 == high
    text = sentences(found)
    assert re.search(rf"The {wrong} most suspicious rows should contain between \d\d% and 100% of them", text)
    promised = int(re.search(r"should contain between (\d+)%", text)[1])
    assert 100 * low - 1 < promised <= 100 * low
    assert "about 100%" not in text


def test_the_report_says_why_suggestions_that_differ_are_not_the_wrong_labels():
    found = findings()
    text = sentences(found)
    assert f"The suggested label differs from the given one in {int(found.disputed.sum())} rows." in text
    assert "some suggestions are wrong, and some wrong labels get no other suggestion" in text


def test_the_share_of_right_suggestions_has_an_interval_too():
    """After 26 right ones of 26, Clopper and Pearson's lower end is 0.025^(1/26)."""
    found = findings()
    worth = found.worth._replace(correct=np.ones(40, bool))
    assert worth.wrong.sum() == 26
    low, high = worth.suggested_interval()
    assert (low, high) == (pytest.approx(0.025 ** (1 / 26), abs=0.005), 1)
    assert "how many were corrected; 95 % interval 86% to 100%" in sentences(replace(found, worth=worth))


def test_files_of_the_same_findings_agree():
    found = findings()
    ranked, _ = ranked_csv(found)
    weights = [line.split(",") for line in weights_csv(found).splitlines()[1:]]
    by_row = {row: (weight, doubt) for row, weight, doubt in weights}
    for line in ranked.splitlines()[1:]:
        row, doubt, weight, *_ = line.split(",")
        assert by_row[row] == (weight, doubt)


HOSTILE = [
    "x\r=1+1+cmd|' /C calc'!A0",
    "\r=1+1",
    "\n=1",
    "x\r\n@y",
    "\tx",
    "＝1",
    "＋1",
    "－x",
    "＠x",
    " =1",
    "a;=1",
]


@pytest.mark.parametrize("cell", HOSTILE)
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_hostile_cell_adds_no_row_and_no_formula(cell, separator):
    check_ranked([cell, "plain", "-5", "y\rz"], separator)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.text("=+-@＝＋－＠\t\r\n\v\x85\u2028 ,;|'\"a1.", max_size=8), min_size=4, max_size=4))
def test_whatever_the_cells_ranked_csv_is_read_back(cells):
    check_ranked(cells, ",")


def check_ranked(cells, separator):
    """All cells come back, but for apostrophes, and none begins with a formula, wherever a reader begins a cell."""
    usual = findings(count=12)
    header = (*usual.table.header[:4], "label")
    rows = [[*cells, usual.classes[usual.given[i]]] for i in range(12)]
    table = Table(Path("data.csv"), header, rows, list(range(2, 14)), separator)
    text, _ = ranked_csv(replace(usual, table=table))
    head, *back = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    assert len(head) == 6 + len(header)
    assert [int(row[0]) - 1 for row in back] == usual.order.tolist()
    for row in back:
        original = rows[int(row[0]) - 1]
        assert [cell.replace("'", "") for cell in row[6:]] == [cell.replace("'", "") for cell in original]
        for cell in row[6:]:
            assert not cell.startswith(("\t", "\r", "\n")) or not cell.strip() or is_decimal(cell)
            begun = [
                cell.lstrip(),
                *(line.lstrip() for line in cell.splitlines()),
                *re.split("[,;\t|]", cell),
            ]
            for part in begun:
                assert not part.startswith(tuple("=@＝＋－＠"))
                assert not part.startswith(("+", "-")) or not re.search(
                    "[a=@]", re.split(r"[,;|\s]", part)[0]
                )


def is_decimal(cell):
    try:
        return float(cell.strip().replace(",", ".").replace(" ", "")) is not None
    except ValueError:
        return False


def test_numbers_and_harmless_texts_stay_as_they_are():
    for cell in (
        "-5",
        "+1.5",
        "-1,5",
        "1e-05",
        "-",
        "+",
        "",
        "x@y.de",
        "a - b",
        "a, -b",
        "3,-5",
        "x\ny",
        "\t5",
    ):
        assert disarmed(cell) == cell


class Name(str):
    """A column's name that counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__

    def strip(self, chars=None):
        return self


def test_comparisons_of_column_names_grow_with_the_columns_and_not_with_their_square():
    columns = 400
    header = (*(Name(f"column {i}") for i in range(columns)), "label")
    rows = [[*map(str, np.random.default_rng(i).random(columns).round(3)), "xy"[i % 2]] for i in range(30)]
    table = Table(Path("data.csv"), header, rows, list(range(30)), ",")
    Name.compared = 0
    _header(list(header), Path("data.csv"))
    encoding, _ = fit_encoding(table, "label")
    encoding(table)
    known_rows(table, table, "label")
    used = [column.name for column in encoding.columns if column.parts]
    found = findings(count=30, classes=("x", "y"))
    as_page(replace(found, table=table, encoding=encoding, telling=used))
    assert Name.compared < 60 * columns  # one search through the header for every column makes 80,000


def test_tame():
    assert tame("a\nb\tc") == "a b c"
    assert tame("\x1b[31mred") == "�[31mred"
    assert tame("x" * 100, 10) == "x" * 9 + "…"


WRAPPER = """<!doctype html><body style="margin:0">
<iframe id="frame" src="report.html" style="width:{width}px;height:9000px;border:0"></iframe><pre id="found"></pre>
<script>
document.getElementById("frame").onload = (event) => {{
  const page = event.target.contentDocument;
  page.querySelectorAll("details").forEach((e) => {{ e.open = true; }});
  const wide = [...page.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > {width} + 1);
  document.getElementById("found").textContent = ["width=" + page.documentElement.scrollWidth,
    "wide=" + wide.length, "rows=" + page.querySelectorAll(".rows tbody tr").length,
    "charts=" + [...page.querySelectorAll("svg")].filter((e) => e.getBoundingClientRect().width > 280).length
  ].join(" ");
}};
</script></body>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_window(tmp_path, width):
    (tmp_path / "report.html").write_text(as_page(findings()), encoding="utf-8")
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(WRAPPER.format(width=width))
    flags = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        "--virtual-time-budget=8000",
    )
    command = [BROWSER, *flags, f"--user-data-dir={tmp_path}", "--dump-dom", wrapper.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    report = shown.split('<pre id="found">')[1].split("</pre>")[0]
    assert report, "the page did not load"
    found = {name: int(value) for name, value in (part.split("=") for part in report.split())}
    assert found.pop("width") <= width  # no sideways scrolling
    assert found == {"wide": 0, "rows": 60, "charts": 3}
