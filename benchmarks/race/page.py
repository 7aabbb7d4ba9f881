"""The measurements as tables of the page, a file of numbers and a figure."""

import csv
from importlib.metadata import distributions
from math import inf
from pathlib import Path

from contestants import CONTESTANTS

from race.rounds import Row

TITLES = {
    "itd": "ITD, one unrolled step",
    "aid": "AID, one step on y and one Hessian product for the adjoint",
    "soba": "SOBA",
    "ridge": "Ridge with both levels solved, 500 penalties, κ ≈ 1000, float64",
}
HEAD = ["library", "how", "ms a step (quartiles)", "peak MiB", "first run, s", "error"]


def versions() -> list[str]:
    """The packages that are installed, of those that anyone needs."""
    packages = sorted(
        {package for contestant in CONTESTANTS for package in contestant.packages} - {"bilevel"}
    )
    found = {distribution.metadata["Name"] for distribution in distributions()}
    return [package for package in (*packages, "numpy") if package in found and package != "jax"]


def cells(row: Row) -> list[str]:
    if not row.seconds:
        why = row.verdict if row.error is None else f"{row.verdict}: error {row.error:.0e}"
        return [row.name, row.how, why, "", "", ""]
    lower, median, upper = (1e3 * s for s in row.quartiles)
    accuracy = f"{row.error:.0e}" + (f" (tol {row.tolerance:.0e})" if row.tolerance else "")
    return [
        row.name,
        row.how,
        f"{median:.1f} ({lower:.1f}–{upper:.1f})",
        f"{row.peak / 2**20:.0f}",
        f"{row.first:.1f}",
        accuracy,
    ]


def lines(rows: list[Row]) -> list[list[str]]:
    """Of one task, the fastest first."""
    return [cells(row) for row in sorted(rows, key=lambda row: row.quartiles[1] if row.seconds else inf)]


def save(folder: Path, rows: list[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "peers.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "library", "how", "verdict", "ms", "peak MiB", "first s", "error"])
        for row in rows:
            median = 1e3 * row.quartiles[1] if row.seconds else None
            mebibytes = None if row.peak is None else row.peak / 2**20
            writer.writerow(
                [row.task, row.name, row.how, row.verdict, median, mebibytes, row.first, row.error]
            )
    draw(folder / "peers.svg", rows)


def label(row: Row) -> str:
    """The name, and the way where there is more than one."""
    way = row.how.split(": ")[-1].split(",")[0].replace("`", "")
    return f"{row.name} ({way})" if row.task in ("aid", "soba") else row.name


def draw(path: Path, rows: list[Row]) -> None:
    """A panel for each task, a bar for each contestant: the median, with the quartiles."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "peers"
    from matplotlib import pyplot

    timed = {
        task: sorted((r for r in rows if r.task == task and r.seconds), key=lambda row: -row.quartiles[1])
        for task in dict.fromkeys(row.task for row in rows)
    }
    timed = {task: rows for task, rows in timed.items() if rows}
    if not timed:
        return
    heights = [len(rows) + 1.5 for rows in timed.values()]
    figure, panels = pyplot.subplots(
        len(timed), 1, figsize=(7, 0.27 * sum(heights) + 0.5), height_ratios=heights, squeeze=False
    )
    for panel, (task, rows) in zip(panels[:, 0], timed.items(), strict=True):
        quartiles = [[1e3 * s for s in row.quartiles] for row in rows]
        medians = [q[1] for q in quartiles]
        spread = [[q[1] - q[0] for q in quartiles], [q[2] - q[1] for q in quartiles]]
        colors = ["#3949ab" if row.name == "bilevel" else "#b0bec5" for row in rows]
        names = [label(row) for row in rows]
        positions = range(len(rows))
        panel.barh(positions, medians, xerr=spread, color=colors, ecolor="#37474f", height=0.7)
        panel.set_yticks(positions, names, fontsize=7)
        for position, (_, median, upper) in zip(positions, quartiles, strict=True):
            panel.annotate(
                f"{median:.1f}",
                (upper, position),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        panel.set_title(f"{TITLES[task].split(',')[0]}: ms a step", fontsize=8, loc="left")
        panel.tick_params(axis="x", labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0.12)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
