"""Data helpers and parsers; data sets that are bundled are not read."""

import numpy as np

import bilevel as bl
from fuzz.call import Call
from fuzz.valid import EXAMPLES, INPUTS

data = bl.data
labels = np.array([0, 1, 2, 1])
idx = bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6])
CALLS = [
    Call(
        "bl.data.Examples",
        data.Examples,
        {"inputs": INPUTS, "targets": labels},
        {"inputs": "rows", "targets": "rows", "source": "text"},
        skip=dict.fromkeys(("inputs", "targets", "source"), ("mixed keys",)),
    ),  # Equinox flattens the arguments first
    Call("bl.data.Examples.take", EXAMPLES.take, {"rows": np.array([0, 1])}, {"rows": "row numbers"}),
    Call(
        "bl.data.Examples.split",
        lambda size, seed: EXAMPLES.split(size, seed=seed),
        {"size": 2, "seed": 0},
        {"size": "count", "seed": "wide seed"},
    ),
    Call(
        "bl.data.corrupt_labels",
        data.corrupt_labels,
        {"labels": labels, "probability": 0.5, "classes": 3, "seed": 0},
        {"labels": "labels", "probability": "share", "classes": "classes", "seed": "wide seed"},
    ),
    Call(
        "bl.data.standardize",
        lambda reference, other: data.standardize(reference, other),
        {"reference": INPUTS, "other": INPUTS},
        {"reference": "refused", "other": "refused"},
    ),
    Call(
        "bl.data.unit_range",
        lambda reference, other: data.unit_range(reference, other),
        {"reference": INPUTS, "other": INPUTS},
        {"reference": "refused", "other": "refused"},
    ),
    Call(
        "bl.data.parse_idx",
        data.parse_idx,
        {"content": idx, "name": "labels", "shape": (2,)},
        {"content": "refused", "name": "text", "shape": "refused"},
    ),
    Call(
        "bl.data.parse_libsvm",
        data.parse_libsvm,
        {"content": b"1 1:2\n", "name": "text", "features": 2},
        {"content": "refused", "name": "text", "features": "count"},
    ),
    Call("bl.data.mnist", data.mnist, {}, {"directory": "refused"}, skip={"directory": ("none",)}),
    Call("bl.data.space_ga", data.space_ga, {}, {"directory": "refused"}, skip={"directory": ("none",)}),
    Call(
        "bl.data.space_ga_scale",
        data.space_ga_scale,
        {},
        {"directory": "refused"},
        skip={"directory": ("none",)},
    ),
    Call("bl.data.cache_directory", data.cache_directory, {}, {}),
]
