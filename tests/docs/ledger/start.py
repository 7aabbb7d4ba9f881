"""Of README.md, CONTRIBUTING.md, the landing page and docs/start/."""

from origins import Claims, written

from bilevel.applications import sparse_penalties
from bilevel.problems.reweighting import initial_mlp

MLP = sum(layer.size for layer in initial_mlp(784, 256, 10, seed=0))

CLAIMS: Claims = {
    "README.md": {
        "203,530 parameters": MLP,
        "and 2,000 weights": lambda: written("tests/solvers/test_cost.py", r"TRAIN, VALID = (\d+), \d+"),
    },
    "CONTRIBUTING.md": {
        "1280 and 390 px wide": lambda: written(".ci/look.py", r"DESK, PHONE = (\d+), (\d+)"),
    },
    "docs/index.md": {"5,000 penalties": sparse_penalties.WORDS},
    "docs/start/quickstart.ipynb": {
        "All penalties began at 2.5": lambda: (
            written("docs/start/quickstart.ipynb", r"return (\d) \* jax.nn.sigmoid\(x\)") / 2  # at x = 0
        ),
    },
}
