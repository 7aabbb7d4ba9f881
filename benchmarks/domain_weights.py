"""examples/domain_weights.py from several seeds: the weights that it ends with, and the losses.

python benchmarks/domain_weights.py [--seeds 3]         # some two minutes a seed
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import record

EXAMPLE = Path(__file__).parents[1] / "examples" / "domain_weights.py"


def printed(seed: int, steps: int) -> dict[str, list[str]]:
    """By the name that begins a line of the example, its numbers."""
    command = [sys.executable, EXAMPLE, "--seed", str(seed), "--steps", str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = (line.strip() for line in done.stdout.splitlines())
    return {re.split(r" \d\.\d{3}", line)[0]: re.findall(r"\d\.\d{3}", line) for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    record.options(parser)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    seeds, steps = (1, 1) if given.quick else (given.seeds, 800)
    found = [printed(seed, steps) for seed in range(seeds)]
    kinds = ("rivers", "foods", "rumors", "sums", "noise")
    weights = ([seed, *(said[kind][0] for kind in kinds)] for seed, said in enumerate(found))
    record.table("domain-weights", ("seed", *kinds), weights, given.record)
    losses = (
        [seed, said["weights learned"][0], said["equal weights"][0], said["its own 16 pages"][1]]
        for seed, said in enumerate(found)
    )
    columns = ("seed", "weights learned", "equal weights", "the 16 pages alone, at best")
    record.table("domain-losses", columns, losses, given.record)


if __name__ == "__main__":
    main()
