"""The measurements as a section of the page, a table of numbers and a figure."""

import csv
import json
import os
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from contestants import CONTESTANTS, LEFT_OUT

from race.rounds import Row

TITLES = {
    "itd": "ITD, one unrolled step",
    "aid": "AID, one step on y and one Hessian product for the adjoint",
    "soba": "SOBA",
    "ridge": "Ridge with both levels solved, 500 penalties, κ ≈ 1000, float64",
}
BEGIN, END = "<!-- peers: written by benchmarks/peers.py -->", "<!-- peers: end -->"


def machine(threads: int) -> dict:
    """Date, versions and hardware."""
    packages = sorted({package for contestant in CONTESTANTS for package in contestant.packages} | {"numpy"})
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "date": str(date.today()),
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": threads,
        "python": platform.python_version(),
        "versions": found,
    }


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


def table(rows: list[Row]) -> str:
    head = ["library", "how", "ms a step (quartiles)", "peak MiB", "first run, s", "error"]
    ordered = sorted(rows, key=lambda row: row.quartiles[1] if row.seconds else float("inf"))
    lines = [head, ["---", "---", "--:", "--:", "--:", "--:"], *map(cells, ordered)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def section(rows: list[Row], about: dict, rounds: int) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items() if number)
    parts = [
        f"Measured on {about['date']}: {about['cpu']}, {about['cores']} cores, {about['threads']} threads,\n"
        f"Python {about['python']}, {versions}.\nMedians and quartiles of {rounds} rounds.",
        "![Milliseconds of an outer step for each library and method](../assets/peers.svg)",
    ]
    for task in dict.fromkeys(row.task for row in rows):
        parts += [f"**{TITLES[task]}**", table([row for row in rows if row.task == task])]
    parts += [f"{name} {why}." for name, why in LEFT_OUT.items()]
    return "\n\n".join(parts)


def fill(page: Path, text: str) -> None:
    """Puts the text between the two marks of the page."""
    before, mark, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(
            f"{page} must have the lines {BEGIN!r} and {END!r}, in between which the section is put"
        )
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def save(folder: Path, rows: list[Row], about: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    records = [row.record() for row in rows]
    (folder / "peers.json").write_text(
        json.dumps(about | {"rows": records}, indent=1, ensure_ascii=False) + "\n"
    )
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
        colours = ["#3949ab" if row.name == "bilevel" else "#b0bec5" for row in rows]
        names = [label(row) for row in rows]
        positions = range(len(rows))
        panel.barh(positions, medians, xerr=spread, color=colours, ecolor="#37474f", height=0.7)
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
