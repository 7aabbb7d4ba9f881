"""The report: complete, self-contained, the same for the same tables, and honest about what was not run."""

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from bilevel.lab.paper import manifest
from bilevel.lab.paper.claims import QUESTIONS
from bilevel.lab.paper.registry import EXPERIMENTS, read_results
from bilevel.lab.paper.report import write_report
from bilevel.lab.paper.report.content import CAPTIONS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory, fill):
    folder = tmp_path_factory.mktemp("results")
    fill(folder)
    write_report(folder, ("png", "svg", "pdf"))
    return folder


class Page(HTMLParser):
    """Everything on a page that could point elsewhere, and whether its tags are in balance."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [
            value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")
        ]
        if tag not in ("meta", "img", "col", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(folder):
    parser = Page()
    parser.feed((folder / "report.html").read_text())
    return parser


def test_page_is_self_contained(folder, page):
    assert page.tags.isdisjoint({"script", "link", "iframe", "object", "embed", "base"})
    assert page.addresses
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.addresses)
    text = (folder / "report.html").read_text()
    assert not re.search(r"url\(|@import|https?://", re.sub(r'src="data:[^"]*"', "", text))


def test_page_is_well_formed_and_fits_a_phone(folder, page):
    assert page.open == []
    assert 'name="viewport"' in (folder / "report.html").read_text()


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_every_claim_and_every_experiment_is_there(folder, name):
    text = (folder / name).read_text()
    plain = re.sub(r"\^|</?sup>", "", text).replace("&#x27;", "'")
    for question in QUESTIONS:
        assert question.claim.replace("^", "") in plain
    for experiment in EXPERIMENTS.values():
        assert experiment.title in text
    assert "made-up digits" in text  # the data
    assert "jax 0." in text
    assert "ITD 0 to 1, AID 0 to 0" in text  # the seeds
    assert "6 s" in text  # five experiments of 1.25 seconds


def test_shortened_settings_are_announced(folder):
    assert (
        "fig3-features was run with other settings than the full protocol: kappas, seeds, steps."
        in (folder / "report.md").read_text()
    )


def test_every_figure_in_every_format(folder):
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for panel in CAPTIONS:
        for suffix, start in starts.items():
            assert (folder / f"{panel}.{suffix}").read_bytes().startswith(start)


def test_markdown_tables_are_regular(folder):
    for block in (folder / "report.md").read_text().split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1


def test_every_analysis_has_a_column_of_exponents(folder):
    lines = (folder / "report.md").read_text().splitlines()
    assert "| method | quantity | earlier | paper | sharp | tight | star | lower bound |" in lines
    rate = next(line for line in lines if line.startswith("| AID | part that vanishes, × K |"))
    assert [float(cell.split()[0]) for cell in rate.split("|")[3:8]] == pytest.approx(
        [6, 5, 5, 5, 4], abs=0.05
    )
    beta = next(line for line in lines if line.startswith("| AID | β |"))
    assert "(−6)" in beta
    assert "-" not in beta  # a minus sign, not a hyphen


def test_beyond_the_paper_is_in_plain_numbers(folder):
    beyond = (folder / "report.md").read_text().split("## Beyond the paper")[1].split("##")[0]
    assert not re.search(r"\de[+-]\d", beyond)
    assert "star κ^4.00/K" in beyond
    assert "κ<sup>4.00</sup>/K" in (folder / "report.html").read_text()


def test_same_tables_same_figures_and_page(folder):
    names = [
        "report.html",
        "report.md",
        *(f"{panel}.{suffix}" for panel in CAPTIONS for suffix in ("svg", "pdf")),
    ]
    before = {name: (folder / name).read_bytes() for name in names}
    write_report(folder, ("svg", "pdf"))
    assert before == {name: (folder / name).read_bytes() for name in names}


def test_a_folder_with_one_experiment_makes_a_report_of_it(folder, tmp_path):
    for name in ("fig2.json", *EXPERIMENTS["fig2"].tables):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    claims = write_report(tmp_path)
    judged = {claim.where for claim in claims if claim.verdict != "not judged"}
    assert judged == {"Lower bound, Figure 2", "Figure 2, left", "Figure 2, right"}
    assert "Not run: fig1, table1, fig3-features, fig3-reweighting." in (tmp_path / "report.md").read_text()
    assert not list(tmp_path.glob("fig1*"))


def test_a_table_that_was_edited_by_hand_is_not_reported(folder, tmp_path):
    for name in ("fig2.json", *EXPERIMENTS["fig2"].tables):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with (tmp_path / "fig2_factors.csv").open("a") as file:
        file.write("measured_limit,0.32,0.32,0.32,0.32\n")
    assert "fig2" not in read_results(tmp_path).manifests


HOSTILE = "evil<img src=x onerror=alert(1)>&amp;[x](javascript:alert(1))`a`|b\n# c\\|d\udcff"


@pytest.fixture(scope="module")
def hostile(folder, tmp_path_factory):
    """A manifest whose words were chosen by an enemy, such as the name of the data's folder."""
    tmp_path = tmp_path_factory.mktemp("hostile")
    for name in EXPERIMENTS["fig2"].tables:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    found = manifest.read(EXPERIMENTS["fig2"], folder)
    titled = dataclasses.replace(EXPERIMENTS["fig2"], title=f"<script>alert(1)</script>{HOSTILE}")
    manifest.write(titled, tmp_path, found["origin"], f"full MNIST from {HOSTILE}", seconds=1.0)
    write_report(tmp_path, ("svg",))
    return tmp_path


def test_hostile_words_stay_words_in_html(hostile):
    parser = Page()
    parser.feed((hostile / "report.html").read_text())
    assert parser.open == []
    assert "script" not in parser.tags
    assert all(address.startswith("data:image/svg+xml;base64,") for address in parser.addresses)


def test_hostile_words_stay_words_in_markdown(hostile):
    """Read by a Markdown processor where there is one, and looked through by hand in any case."""
    text = (hostile / "report.md").read_text()
    assert "evil" in text
    assert not re.search(r"<(?!br)[a-zA-Z/!]", text)
    (row,) = [line for line in text.splitlines() if "full MNIST from" in line]
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 5  # four cells, as in the heading
    assert not re.search(r"(?<!\\)(?:\\\\)*[\[\]`]", row)
    markdown = pytest.importorskip("markdown")
    parser = Page()
    parser.feed(markdown.markdown(text, extensions=["tables"], output_format="html"))
    assert parser.tags.isdisjoint({"script", "a", "code"})
    assert all(address.startswith("fig2_") for address in parser.addresses)
