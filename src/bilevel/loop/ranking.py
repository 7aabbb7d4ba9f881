"""Order of a sweep's lanes from best to worst, and their names."""

from typing import TYPE_CHECKING

import jax
import numpy as np

if TYPE_CHECKING:
    from bilevel.loop.sweep import Sweep

WITHIN = {"rule", "step_size", "numbers"}  # fields of a solver with the number that the user gave


def ranked(found: "Sweep") -> list[int]:
    """Return the lanes from the best to the worst. Those without a score are last."""
    scores = np.asarray(found.scores, float)
    larger_is_better = found.best is not None and scores[found.best] > np.nanmin(scores)
    order = -scores if larger_is_better else scores
    return sorted(range(len(found)), key=lambda i: (i != found.best, not np.isfinite(order[i]), order[i], i))


def lane_names(found: "Sweep") -> list[str]:
    """Return the numbers in which the lanes' solvers differ, such as step sizes, else the lanes' numbers."""
    leaves = [jax.tree_util.tree_leaves_with_path(solver) for solver in found.solvers]
    told: list[list[str]] = [[] for _ in leaves]
    for same in zip(*leaves, strict=True):
        values = [np.asarray(leaf) for _, leaf in same]
        if all(value.ndim == 0 for value in values) and len({float(value) for value in values}) > 1:
            parts = jax.tree_util.keystr(same[0][0], simple=True, separator=".").split(".")
            what = ".".join(part for part in parts if part not in WITHIN) or "step_size"
            for names, value in zip(told, values, strict=True):
                names.append(f"{what} {float(value):.4g}")
    named = [", ".join(names) for names in told]
    alike = len(set(named)) < len(named) or not all(named)
    return [f"lane {i} {name}".strip() for i, name in enumerate(named)] if alike else named
