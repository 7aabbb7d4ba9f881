"""Three small charts as inline SVG, with the colors of the page, light or dark."""

from html import escape

import numpy as np

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 440, 270, 50, 18, 12, 42
across = lambda share: LEFT + share * (WIDTH - LEFT - RIGHT)
down = lambda share: HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def layered(values: np.ndarray, marked: np.ndarray, x: str, title: str, bins: int = 20) -> str:
    """Draw a histogram of values in [0, 1], and the marked ones in front; heights are roots of counts."""
    edges = np.linspace(0, 1, bins + 1)
    count = lambda part: np.histogram(np.clip(part, 0, 1), edges)[0]
    every, some = count(values), count(values[marked])
    most = max(int(every.max()), 1)
    height = lambda rows: float(np.sqrt(rows / most))
    bars = [
        _bar(edges[i], edges[i + 1], height(counts[i]), kind)
        for i in range(bins)
        for counts, kind in ((every, "a"), (some, "b"))
    ]
    ticks = sorted({0, round(most / 25), round(most / 4), most})
    return _chart(bars, x, title, [(height(tick), f"{tick:,}") for tick in ticks])


def beside(first: np.ndarray, second: np.ndarray, x: str, title: str, bins: int = 10) -> str:
    """Draw two histograms of shares, side by side."""
    edges = np.linspace(0, 1, bins + 1)
    share = lambda part: np.histogram(np.clip(part, 0, 1), edges)[0] / max(len(part), 1)
    both = share(first), share(second)
    top = 1.0 if max(part.max() for part in both) > 0.5 else 0.5
    bars = []
    for i, (a, b) in enumerate(zip(*both, strict=True)):
        middle = (edges[i] + edges[i + 1]) / 2
        bars += [_bar(edges[i], middle, a / top, "a"), _bar(middle, edges[i + 1], b / top, "b")]
    return _chart(bars, x, title, [(at, f"{at * top:.0%}") for at, _ in _PERCENT])


def curve(xs: np.ndarray, ys: np.ndarray, x: str, title: str) -> str:
    """Draw a curve of shares, and the diagonal of a random order."""
    points = " ".join(f"{across(a):.1f},{down(b):.1f}" for a, b in zip(xs, ys, strict=True))
    chance = f'<line class="chance" x1="{across(0)}" y1="{down(0)}" x2="{across(1)}" y2="{down(1)}"/>'
    return _chart([chance, f'<polyline class="line" points="{points}"/>'], x, title, _PERCENT, percent=True)


_PERCENT = [(share, f"{share:.0%}") for share in (0.0, 0.5, 1.0)]


def _bar(left: float, right: float, top: float, kind: str) -> str:
    if top <= 0:
        return ""
    x, width = across(left) + 0.75, across(right) - across(left) - 1.5
    height = max(down(0) - down(top), 1.0)  # a single row must be visible
    y = down(0) - height
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _chart(
    marks: list[str], x: str, title: str, ticks: list[tuple[float, str]], percent: bool = False
) -> str:
    """Return the SVG; `title` is for screen readers."""
    grid = "".join(
        f'<line class="grid" x1="{LEFT}" y1="{down(at):.1f}" x2="{WIDTH - RIGHT}" y2="{down(at):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{down(at) + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        for at, text in ticks
    )
    below = "".join(
        f'<text x="{across(at):.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">'
        f"{f'{at:.0%}' if percent else f'{at:g}'}</text>"
        for at in (0, 0.25, 0.5, 0.75, 1)
    )
    names = f'<text x="{across(0.5)}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x)}</text>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>'
        f"{grid}{''.join(marks)}{below}{names}</svg>"
    )
