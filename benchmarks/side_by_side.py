"""One small problem in every library that people come from, beside ours: is each right, and how long is the code?

    python benchmarks/side_by_side.py [--only jaxopt higher]

What is not installed is said and passed over; docs/how-to/elsewhere.md says how to install each. Of every library its x
after one step tells the hypergradient that it used, which is compared with the closed form (elsewhere/problem.py), and
its x after all steps must be the minimizer. Whoever is wrong makes the exit status 1.
"""

import argparse
import ast
import contextlib
import io
import sys
import warnings
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

import jax
import numpy as np
import record
from elsewhere import problem

import bilevel

FOLDER = Path(__file__).parent / "elsewhere"


@dataclass(frozen=True)
class Entry:
    """A function of a file, and what it is of. `exact`: whether a step uses the hypergradient at x itself."""

    library: str
    module: str
    package: str | None = None  # what pip calls it
    function: str = "solve"
    exact: bool = True

    @property
    def version(self) -> str:
        if self.module == "ours":
            return bilevel.__version__
        return metadata.version(self.package) if self.package else "its repository"

    def solve(self, steps: int) -> np.ndarray:
        """x after so many steps on it, without what the library prints."""
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = getattr(import_module(f"elsewhere.{self.module}"), self.function)(steps)
        return np.asarray(x.detach() if hasattr(x, "detach") else x)

    @property
    def lines(self) -> int:
        """Lines of code besides the imports: of ours, the problem and one of its functions."""
        text = (FOLDER / f"{self.module}.py").read_text()
        count = 0
        for part in ast.parse(text).body[1:]:
            another = isinstance(part, ast.FunctionDef) and part.name != self.function
            if isinstance(part, ast.Import | ast.ImportFrom) or (another and self.module == "ours"):
                continue
            first = min([part.lineno, *(d.lineno for d in getattr(part, "decorator_list", []))])
            count += sum(bool(line.strip()) for line in text.splitlines()[first - 1 : part.end_lineno])
        return count


ENTRIES = (
    Entry("bilevel, unrolled", "ours", function="unrolled"),
    Entry("bilevel, implicit", "ours", function="implicit"),
    Entry("bilevel, single loop", "ours", function="single_loop", exact=False),
    Entry("bilevel, no step sizes", "ours", function="without_step_sizes", exact=False),
    Entry("jaxopt", "with_jaxopt", "jaxopt"),
    Entry("optimistix", "with_optimistix", "optimistix"),
    Entry("TorchOpt", "with_torchopt", "torchopt"),
    Entry("Betty", "with_betty", "betty-ml"),
    Entry("BOAT", "with_boat", "boat-torch"),
    Entry("higher", "with_higher", "higher"),
    Entry("hypertorch", "with_hypertorch"),
    Entry("PyTorch", "with_torch", "torch"),
)


@dataclass(frozen=True)
class Verdict:
    """`hypergradient`: the relative error of that at x0; `distance`: of the last x from the minimizer of Φ."""

    hypergradient: float | None
    value: float
    distance: float

    @property
    def right(self) -> bool:
        return (self.hypergradient or 0.0) <= 1e-8 and self.distance <= 1e-5


def judged(entry: Entry) -> Verdict:
    error = None
    if entry.exact:
        exact = problem.hypergradient(problem.x0)
        used = (problem.x0 - entry.solve(1)) / problem.BETA
        error = float(np.linalg.norm(used - exact) / np.linalg.norm(exact))
    x = entry.solve(problem.OUTER)
    distance = np.max(np.abs(x - problem.descended(problem.x0, 1000)))
    return Verdict(error, float(problem.value(x)), float(distance))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    names = [entry.library for entry in ENTRIES]
    parser.add_argument("--only", nargs="+", choices=names, help="these alone")
    given = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    only = given.only or (["bilevel, unrolled"] if given.quick else names)
    rows = [told(entry) for entry in ENTRIES if entry.library in only]
    columns = ("library", "version", "error of ∇Φ(x0)", "Φ at the end", "from the minimizer", "lines", "")
    record.table("side-by-side", columns, rows, given.record)
    return int(any(row[-1] == "**wrong**" for row in rows))


def told(entry: Entry) -> list[str]:
    try:
        verdict, version = judged(entry), entry.version
    except ImportError as error:
        return [entry.library, "", "", "", "", str(entry.lines), f"not run: {error}"]
    return [
        entry.library,
        version,
        "does not solve for it" if verdict.hypergradient is None else f"{verdict.hypergradient:.0e}",
        f"{verdict.value:.9f}",
        f"{verdict.distance:.0e}",
        str(entry.lines),
        "right" if verdict.right else "**wrong**",
    ]


if __name__ == "__main__":
    if status := main():
        sys.exit(status)
