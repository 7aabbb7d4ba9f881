"""Report as one self-contained web page, with the figures inside and without scripts."""

import base64
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from bilevel.lab.paper.claims import Claim, Verdict
from bilevel.lab.paper.registry import EXPERIMENTS
from bilevel.lab.paper.report.content import CAPTIONS, Content
from bilevel.lab.paper.report.tables import Grid

SIGNS = {Verdict.HOLDS: "✓", Verdict.CAVEAT: "≈", Verdict.DIFFERS: "✗", Verdict.NOT_JUDGED: "–"}
CLASSES = {
    Verdict.HOLDS: "holds",
    Verdict.CAVEAT: "caveat",
    Verdict.DIFFERS: "differs",
    Verdict.NOT_JUDGED: "open",
}


def as_page(content: Content, folder: Path) -> str:
    """Return the page, with the figures in `folder`, which are SVG files."""
    template = Template((files("bilevel.lab.paper.report") / "template.html").read_text(encoding="utf-8"))
    return template.substitute(
        summary=escape(content.summary),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in content.notes),
        claims="\n".join(map(_claim, content.claims)),
        sections="\n".join(_section(name, content, folder) for name in content.grids),
        beyond=_grid(content.beyond, "scroll words")
        if content.beyond.rows
        else "<p>No experiment that shows it was run.</p>",
        runs=_grid(content.runs, "scroll words"),
        environment="".join(
            f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in content.environment.items()
        ),
    )


def _claim(claim: Claim) -> str:
    verdict = f'<span class="verdict {CLASSES[claim.verdict]}">{SIGNS[claim.verdict]} {escape(claim.verdict)}</span>'
    cells = (
        ("where", escape(claim.where)),
        ("claim", _raised(claim.claim)),
        ("paper", _raised(claim.paper)),
        ("ours", _raised(claim.ours)),
        ("verdict", verdict),
        ("why", _raised(claim.why)),
    )
    return "<tr>" + "".join(f'<td data-label="{label}">{cell}</td>' for label, cell in cells) + "</tr>"


def _raised(text: str) -> str:
    """Set exponents as superscripts: κ^2.26 with 2.26 raised."""
    return re.sub(
        r"\^(-?\d+(?:\.\d+)?)", lambda found: f"<sup>{found[1].replace('-', '−')}</sup>", escape(text)
    )


def _section(name: str, content: Content, folder: Path) -> str:
    figures = "".join(_figure(panel, folder) for panel in content.panels.get(name, []))
    grids = "".join(f"<h3>{escape(grid.title)}</h3>{_grid(grid)}" for grid in content.grids[name])
    drawn = f'<div class="figures">{figures}</div>' if figures else ""
    return f"<section><h2>{escape(EXPERIMENTS[name].title)}</h2>{drawn}{grids}</section>"


def _figure(panel: str, folder: Path) -> str:
    picture = base64.b64encode((folder / f"{panel}.svg").read_bytes()).decode("ascii")
    caption = escape(CAPTIONS[panel])
    source = f"data:image/svg+xml;base64,{picture}"
    return f'<figure><img alt="{caption}" src="{source}"><figcaption>{caption}</figcaption></figure>'


def _grid(grid: Grid, kind: str = "scroll") -> str:
    """Return the table. Numbers scroll sideways on narrow pages, and words are broken into lines."""
    head = "".join(f"<th>{escape(title)}</th>" for title in grid.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_raised(str(cell))}</td>" for cell in row) + "</tr>" for row in grid.rows
    )
    return f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
