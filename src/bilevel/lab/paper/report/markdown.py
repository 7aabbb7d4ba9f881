"""Report as Markdown; the figures are files in the same folder."""

import re
from html import escape

from bilevel.lab.paper.registry import EXPERIMENTS
from bilevel.lab.paper.report.content import CAPTIONS, Content
from bilevel.lab.paper.report.tables import Grid


def as_markdown(content: Content) -> str:
    claims = Grid(
        "",
        ("where", "claim", "paper", "ours", "verdict", "why"),
        [(c.where, c.claim, c.paper, c.ours, f"**{c.verdict}**", c.why) for c in content.claims],
    )
    parts = [
        "# The paper, reproduced",
        _plain(content.summary),
        *(f"> {_plain(note)}" for note in content.notes),
    ]
    parts += ["## Claim by claim", _grid(claims)]
    for name, experiment in EXPERIMENTS.items():
        if name in content.grids:
            parts.append(f"## {_plain(experiment.title)}")
            parts += [
                f"![{panel}]({panel}.png)\n\n*{_plain(CAPTIONS[panel])}*"
                for panel in content.panels.get(name, [])
            ]
            parts += [f"**{_plain(grid.title)}**\n\n{_grid(grid)}" for grid in content.grids[name]]
    if content.beyond.rows:
        parts += ["## Beyond the paper", _grid(content.beyond)]
    parts += ["## How this was made", _grid(content.runs)]
    parts.append(
        "\n".join(f"- {_plain(name)}: {_plain(value)}" for name, value in content.environment.items())
    )
    return "\n\n".join(parts) + "\n"


def _grid(grid: Grid) -> str:
    line = lambda cells: "| " + " | ".join(map(_plain, cells)) + " |"
    return "\n".join([line(grid.header), line(["---"] * len(grid.header)), *map(line, grid.rows)])


def _plain(text: object) -> str:
    """Escape HTML, links, code and table cells, and join the lines."""
    on_one_line = " ".join(str(text).split())
    return re.sub(r"[\\`\[\]|]", r"\\\g<0>", escape(on_one_line, quote=False))
