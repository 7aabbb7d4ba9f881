"""Report as Markdown, with figures in files, and as one web page without scripts, with the figures inside."""

import base64
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from bilevel.lab.paper.claims import Claim, Verdict
from bilevel.lab.paper.registry import EXPERIMENTS
from bilevel.lab.paper.report.content import CAPTIONS, Content, Grid

SIGNS = {Verdict.HOLDS: "✓", Verdict.CAVEAT: "≈", Verdict.DIFFERS: "✗", Verdict.NOT_JUDGED: "–"}
CLASSES = dict(zip(SIGNS, ("holds", "caveat", "differs", "open"), strict=True))  # of CSS


def as_page(content: Content, folder: Path) -> str:
    """Return the page, with the figures in `folder`, which are SVG files."""
    template = Template((files("bilevel.lab.paper.report") / "template.html").read_text(encoding="utf-8"))
    none = "<p>No experiment that shows it was run.</p>"
    made = [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in content.environment.items()]
    return template.substitute(
        summary=escape(content.summary),
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in content.notes),
        claims="\n".join(map(_claim, content.claims)),
        sections="\n".join(_section(name, content, folder) for name in content.grids),
        beyond=_grid(content.beyond, "scroll words") if content.beyond.rows else none,
        runs=_grid(content.runs, "scroll words"),
        environment="".join(made),
    )


def _claim(claim: Claim) -> str:
    verdict = f'<span class="verdict {CLASSES[claim.verdict]}">{SIGNS[claim.verdict]} {escape(claim.verdict)}</span>'
    raised = {name: _raised(getattr(claim, name)) for name in ("claim", "paper", "ours")}
    cells = {"where": escape(claim.where), **raised, "verdict": verdict, "why": _raised(claim.why)}
    return (
        "<tr>" + "".join(f'<td data-label="{label}">{cell}</td>' for label, cell in cells.items()) + "</tr>"
    )


def _raised(text: str) -> str:
    """Set exponents as superscripts: κ^2.26 with 2.26 raised."""
    superscript = lambda found: f"<sup>{found[1].replace('-', '−')}</sup>"
    return re.sub(r"\^(-?\d+(?:\.\d+)?)", superscript, escape(text))


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
    line = lambda row: "".join(f"<td>{_raised(str(cell))}</td>" for cell in row)
    rows = "".join(f"<tr>{line(row)}</tr>" for row in grid.rows)
    return f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def as_markdown(content: Content) -> str:
    rows = [(c.where, c.claim, c.paper, c.ours, f"**{c.verdict}**", c.why) for c in content.claims]
    claims = Grid("", ("where", "claim", "paper", "ours", "verdict", "why"), rows)
    parts = ["# The paper, reproduced", _plain(content.summary)]
    parts += [f"> {_plain(note)}" for note in content.notes]
    parts += ["## Claim by claim", _markdown_grid(claims)]
    for name, experiment in EXPERIMENTS.items():
        if name in content.grids:
            parts.append(f"## {_plain(experiment.title)}")
            drawn = content.panels.get(name, [])
            parts += [f"![{panel}]({panel}.png)\n\n*{_plain(CAPTIONS[panel])}*" for panel in drawn]
            parts += [f"**{_plain(grid.title)}**\n\n{_markdown_grid(grid)}" for grid in content.grids[name]]
    if content.beyond.rows:
        parts += ["## Beyond the paper", _markdown_grid(content.beyond)]
    made = [f"- {_plain(name)}: {_plain(value)}" for name, value in content.environment.items()]
    parts += ["## How this was made", _markdown_grid(content.runs), "\n".join(made)]
    return "\n\n".join(parts) + "\n"


def _markdown_grid(grid: Grid) -> str:
    line = lambda cells: "| " + " | ".join(map(_plain, cells)) + " |"
    return "\n".join([line(grid.header), line(["---"] * len(grid.header)), *map(line, grid.rows)])


def _plain(text: object) -> str:
    """Escape HTML, links, code and table cells, and join the lines."""
    on_one_line = " ".join(str(text).split())
    return re.sub(r"[\\`\[\]|]", r"\\\g<0>", escape(on_one_line, quote=False))
