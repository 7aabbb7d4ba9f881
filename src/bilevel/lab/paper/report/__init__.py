"""Report: figures, verdicts and provenance of a folder of results, as a web page and as Markdown."""

from pathlib import Path

from bilevel.atomic_files import write
from bilevel.lab.paper.claims import Claim, judge
from bilevel.lab.paper.plots import draw_all
from bilevel.lab.paper.registry import read_results
from bilevel.lab.paper.report.content import gather
from bilevel.lab.paper.report.pages import as_markdown, as_page


def write_report(folder: Path, formats: tuple[str, ...] = ("png", "svg")) -> list[Claim]:
    """Draw the figures and write report.html and report.md into `folder`, from its tables and manifests."""
    results = read_results(folder)
    panels = draw_all(results, folder, formats)
    claims = judge(results)
    content = gather(results, claims, panels)
    for name, text in {"report.md": as_markdown(content), "report.html": as_page(content, folder)}.items():
        write(folder / name, text.encode("utf-8", "backslashreplace"))  # a folder's name need not be Unicode
    return claims
