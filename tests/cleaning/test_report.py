"""The page: hostile cells stay text, nothing is fetched, the numbers are those that were found, and it fits a phone."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bilevel.cleaning.encoding import fit_encoding
from bilevel.cleaning.files import ranked_csv, weights_csv
from bilevel.cleaning.findings import Findings, tame
from bilevel.cleaning.report import as_page, charts
from bilevel.cleaning.table import Table
from bilevel.cleaning.worth import Worth

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


def test_files_of_the_same_findings_agree():
    found = findings()
    ranked, _ = ranked_csv(found)
    weights = [line.split(",") for line in weights_csv(found).splitlines()[1:]]
    by_row = {row: (weight, doubt) for row, weight, doubt in weights}
    for line in ranked.splitlines()[1:]:
        row, doubt, weight, *_ = line.split(",")
        assert by_row[row] == (weight, doubt)


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
