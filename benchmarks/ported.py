"""Three programs of other PyTorch libraries and their ports to `bl.torch.front`: are the results the same?

    python benchmarks/ported.py

Each pair (elsewhere/weight_net.py and weight_net_betty.py, maml.py and maml_higher.py, decay.py and decay_torchopt.py)
starts from the same module and takes 20 steps on the same batches, in float64. Compared are all final parameters. A
library that is not installed is reported; the status is 1 if a difference is larger than 1e-8.
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
import torch

FOLDER = Path(__file__).parent / "elsewhere"
STEPS = 20
TOLERANCE = 1e-8  # relative to the distance moved


@dataclass(frozen=True)
class Program:
    title: str
    module: str
    library: str
    package: str  # its name for pip

    @property
    def original(self) -> str:
        return f"{self.module}_{self.library.lower()}"

    def solve(self, name: str, steps: int) -> np.ndarray:
        """Return all final parameters of the port or of the original."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with jax.enable_x64(True), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return flat(import_module(f"elsewhere.{name}").solve(steps))
        finally:
            torch.set_default_dtype(default)

    def compare(self) -> tuple[float, float]:
        """Return the norm of the original's result, and our distance from it, relative to how far it moved."""
        theirs, start = (self.solve(self.original, steps) for steps in (STEPS, 0))
        ours = self.solve(self.module, STEPS)
        distance = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs - start)
        return float(np.linalg.norm(theirs)), float(distance)


PROGRAMS = (
    Program("Meta-Weight-Net", "weight_net", "Betty", "betty-ml"),
    Program("MAML", "maml", "higher", "higher"),
    Program("a decay for each input", "decay", "TorchOpt", "torchopt"),
)


def flat(results: tuple) -> np.ndarray:
    """Return the parameters of modules, and arrays, as one vector."""
    parts = [list(each.parameters()) if isinstance(each, torch.nn.Module) else [each] for each in results]
    arrays = [each.detach() if isinstance(each, torch.Tensor) else each for part in parts for each in part]
    return np.concatenate([np.ravel(array) for array in arrays])


def lines(program: Program) -> tuple[int, int]:
    """Return the lines of the port and of the original: their functions and classes, without what both use."""
    sources = [(FOLDER / f"{name}.py").read_text() for name in (program.module, program.original)]
    imports = [part for part in ast.parse(sources[1]).body if isinstance(part, ast.ImportFrom)]
    shared = {
        each.name for part in imports if part.module == f"elsewhere.{program.module}" for each in part.names
    }
    counts = []
    for source in sources:
        parts = [part for part in ast.parse(source).body if isinstance(part, ast.FunctionDef | ast.ClassDef)]
        spans = [source.splitlines()[p.lineno - 1 : p.end_lineno] for p in parts if p.name not in shared]
        counts.append(sum(bool(line.strip()) for span in spans for line in span))
    return counts[0], counts[1]


def row(program: Program) -> list[str]:
    ours, theirs = map(str, lines(program))
    try:
        (norm, difference), version = program.compare(), metadata.version(program.package)
    except ImportError as error:
        return [program.title, program.library, "", theirs, ours, "", f"not run: {error}"]
    shown = f"{difference:.0e}" if difference <= TOLERANCE else f"**{difference:.0e}**"
    return [program.title, program.library, version, theirs, ours, f"{norm:.8f}", shown]


HEAD = ("program", "library", "version", "its lines", "our lines", "norm of its result", "our difference")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    given = parser.parse_args(arguments)
    rows = [row(program) for program in (PROGRAMS[:1] if given.quick else PROGRAMS)]
    record.table("ported", HEAD, rows, given.record, libraries=("torch",))
    return int(any("**" in row[-1] for row in rows))


if __name__ == "__main__":
    if status := main():
        sys.exit(status)
