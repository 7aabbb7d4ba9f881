"""Wrong labels found in real tables: the ranking of `bilevel clean` beside filters that people use.

    python benchmarks/cleaning.py [--tables wine digits] [--seeds 3] [--out FILE] [--record docs/measured] [--quick]

Four tables: scikit-learn's wine, breast cancer and digits, and, if asked for, the bundled 5,000 images of MNIST as a
table of 196 columns (means of 2 × 2 pixels). Ten rows of each class are trusted. Of the other labels, 10, 20 or 40 %
are replaced: evenly by any other class, or by the class most like their own (whose mean is nearest; with two classes
both are one).

Every method gets the same encoded columns, the same given labels and the same trusted rows, and nothing else:

- bilevel: `weigh`, as the command calls it, with a linear model and with a network.
- loss: five folds; the cross-entropy of a label under the model that has not seen it. Trusted rows are among the
  training rows of every fold that they are not in, and choose the model's setting by their own out-of-fold loss:
  logistic regression with one of five penalties, and a random forest with one of three sizes of leaf.
- cleanlab (if it is installed, which a record wants): the same probabilities, the issues that `find_label_issues` finds
  first, and within and after them by its normalized margin.
- trusted only: logistic regression on the trusted rows alone.

Two numbers: the area under the ROC curve, and the precision among as many rows as there are wrong labels. Mean over
seeds, the best in bold; the range over seeds is in the CSV file that --out names.
"""

import argparse
import csv
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import record
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold

import bilevel as bl
from bilevel.cleaning.encoding import fit_encoding
from bilevel.cleaning.table import Table
from bilevel.row_weights.fit import weigh

try:
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores
except ImportError:
    find_label_issues = get_label_quality_scores = None

TRUSTED = 10  # rows of each class
RATES = 0.1, 0.2, 0.4
FOLDS = 5
PENALTIES = [1e-3, 1e-2, 1e-1, 1.0, 10.0]
LEAVES = [1, 3, 10]
NOT_MADE = "–"


def mnist() -> tuple[np.ndarray, np.ndarray]:
    parts = bl.data.mnist()
    images = np.concatenate([parts.train.inputs, parts.test.inputs])
    small = images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)
    return small, np.concatenate([parts.train.targets, parts.test.targets])


TABLES: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "wine": lambda: load_wine(return_X_y=True),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "digits": lambda: load_digits(return_X_y=True),
    "MNIST-5k": mnist,
}


class Task(NamedTuple):
    """What every method is given, and what it has to find."""

    inputs: np.ndarray
    given: np.ndarray
    trusted_inputs: np.ndarray
    trusted_labels: np.ndarray
    classes: int
    wrong: np.ndarray
    seed: int


def task(name: str, kind: str, rate: float, seed: int) -> Task:
    values, labels = TABLES[name]()
    rng, classes = np.random.default_rng(seed), int(labels.max()) + 1
    order = rng.permutation(len(labels))
    trusted = np.concatenate([order[labels[order] == k][:TRUSTED] for k in range(classes)])
    data = np.setdiff1d(order, trusted)
    truth = labels[data]
    wrong = rng.random(len(data)) < rate
    if kind == "evenly":
        other = (truth + rng.integers(1, classes, size=len(data))) % classes
    else:
        other = lookalikes(values, labels)[truth]
    given = np.where(wrong, other, truth).astype(np.int32)
    encoding, inputs = fit_encoding(as_table(values[data], given), "label")
    trusted_inputs = encoding(as_table(values[trusted], labels[trusted]))
    return Task(inputs, given, trusted_inputs, labels[trusted].astype(np.int32), classes, wrong, seed)


def as_table(values: np.ndarray, labels: np.ndarray) -> Table:
    """As it would be read from a file."""
    header = (*(f"x{i}" for i in range(values.shape[1])), "label")
    rows = [[*map(str, row), f"class {label}"] for row, label in zip(values.tolist(), labels, strict=True)]
    return Table(Path("table.csv"), header, rows, list(range(2, len(rows) + 2)), ",")


def lookalikes(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of each class, the one whose mean is nearest, in standard deviations of each column."""
    scaled = (values - values.mean(axis=0)) / np.maximum(values.std(axis=0), 1e-9)
    means = np.stack([scaled[labels == k].mean(axis=0) for k in range(labels.max() + 1)])
    distances = ((means[:, None] - means[None]) ** 2).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    return distances.argmin(axis=1)


def out_of_fold(models: list, task: Task) -> np.ndarray:
    """Probabilities of the data's rows by the model, of these, that does best on the trusted rows it has not seen."""
    rows = np.concatenate([task.inputs, task.trusted_inputs])
    labels = np.concatenate([task.given, task.trusted_labels])
    count = len(task.given)
    folds = [
        StratifiedKFold(FOLDS, shuffle=True, random_state=task.seed).split(part, part)
        for part in (task.given, task.trusted_labels)
    ]
    pairs = [
        tuple(np.concatenate([a, count + b]) for a, b in zip(first, second, strict=True))
        for first, second in zip(*folds, strict=True)
    ]
    best = None
    for model in models:
        found = np.full((len(rows), task.classes), 1e-9)
        for train, test in pairs:
            fitted = clone(model).fit(rows[train], labels[train])
            found[test[:, None], fitted.classes_[None, :]] = fitted.predict_proba(rows[test])
        found = np.clip(found, 1e-6, None)
        found /= found.sum(axis=1, keepdims=True)
        loss = log_loss(task.trusted_labels, found[count:], labels=range(task.classes))
        if best is None or loss < best[0]:
            best = loss, found[:count]
    return best[1]


def logistic(task: Task) -> np.ndarray:
    return out_of_fold([LogisticRegression(C=C, max_iter=300) for C in PENALTIES], task)


def forest(task: Task) -> np.ndarray:
    models = [
        RandomForestClassifier(200, min_samples_leaf=leaf, random_state=task.seed, n_jobs=2)
        for leaf in LEAVES
    ]
    return out_of_fold(models, task)


def loss(probabilities: np.ndarray, task: Task) -> np.ndarray:
    return -np.log(probabilities[np.arange(len(task.given)), task.given])


def confident(probabilities: np.ndarray, task: Task) -> np.ndarray:
    """cleanlab's issues first, and all by its normalized margin; NaN without cleanlab."""
    if find_label_issues is None:
        return np.full(len(task.given), np.nan)
    issues = find_label_issues(task.given, probabilities, n_jobs=1)
    quality = get_label_quality_scores(task.given, probabilities, method="normalized_margin")
    return issues + (1 - quality)


def trusted_only(task: Task) -> np.ndarray:
    model = LogisticRegression(max_iter=300).fit(task.trusted_inputs, task.trusted_labels)
    return loss(np.clip(model.predict_proba(task.inputs), 1e-12, None), task)


def bilevel(hidden: int | None) -> Callable[[Task], np.ndarray]:
    return lambda task: weigh(*task[:5], hidden=hidden, seed=task.seed).suspicion


def scores(task: Task) -> dict[str, np.ndarray]:
    """Suspicion by method. A model's probabilities are made once for all who use them."""
    found = {"bilevel, linear": bilevel(None)(task), "bilevel, network": bilevel(32)(task)}
    for name, model in {"logistic": logistic, "forest": forest}.items():
        probabilities = model(task)
        found[f"loss, {name}"] = loss(probabilities, task)
        found[f"cleanlab, {name}"] = confident(probabilities, task)
    return found | {"trusted only": trusted_only(task)}


def judged(suspicion: np.ndarray, wrong: np.ndarray) -> tuple[float, float]:
    """ROC-AUC, and precision among as many as are wrong; among equals, the expected one. NaN of what was not made."""
    if np.isnan(suspicion).all():
        return np.nan, np.nan
    count = int(wrong.sum())
    threshold = np.sort(suspicion)[-count]
    above, at = suspicion > threshold, suspicion == threshold
    hits = wrong[above].sum() + wrong[at].mean() * (count - above.sum())
    return roc_auc_score(wrong, suspicion), hits / count


def rows(results: dict, place: int) -> Iterator[list[str]]:
    """Means over the seeds, the best as they are shown in bold."""
    for (name, kind, rate), runs in results.items():
        means = [np.mean([run[method][place] for run in runs]) for method in runs[0]]
        shown = [NOT_MADE if np.isnan(mean) else f"{mean:.3f}" for mean in means]
        best = max(text for text in shown if text != NOT_MADE)
        yield [f"{name}, {rate:.0%} {kind}", *(f"**{text}**" if text == best else text for text in shown)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", choices=TABLES, nargs="*", default=list(TABLES)[:3])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", help="a CSV file for every single result")
    record.options(parser)
    given = parser.parse_args()
    tables, seeds, rates = given.tables, given.seeds, RATES
    if given.quick:  # one task, and no choice between settings
        tables, seeds, rates, PENALTIES[1:], LEAVES[1:] = ["wine"], 1, (0.2,), [], []
    elif given.record and find_label_issues is None:
        parser.error("a record has cleanlab in it: pip install '.[bench]'")
    warnings.simplefilter("ignore")  # of models that have not converged: the trusted rows choose others
    results: dict[tuple[str, str, float], list[dict[str, tuple[float, float]]]] = {}
    for name in tables:
        kinds = ["evenly"] if name == "breast cancer" or given.quick else ["evenly", "between lookalikes"]
        for kind in kinds:
            for rate in rates:
                for seed in range(seeds):
                    began, made = time.perf_counter(), task(name, kind, rate, seed)
                    found = {method: judged(value, made.wrong) for method, value in scores(made).items()}
                    results.setdefault((name, kind, rate), []).append(found)
                    took = time.perf_counter() - began
                    print(
                        f"{name}, {kind}, {rate:.0%}, seed {seed}: {took:.0f} s", file=sys.stderr, flush=True
                    )
    if given.out:
        with open(given.out, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["table", "kind", "rate", "seed", "method", "area", "precision"])
            for key, runs in results.items():
                for seed, run in enumerate(runs):
                    writer.writerows([*key, seed, method, *numbers] for method, numbers in run.items())
    libraries = ["scikit-learn", *(["cleanlab"] if find_label_issues else [])]
    for place, title in enumerate(("ROC-AUC", "precision")):
        columns = [title, *next(iter(results.values()))[0]]
        name = f"cleaning-{title.lower()}"
        record.table(name, columns, rows(results, place), given.record, libraries=libraries)


if __name__ == "__main__":
    main()
