"""Folds of a cross-validation from any form of `cv`, as training rows and held-out rows."""

import warnings
from typing import Any

import numpy as np
from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold, StratifiedShuffleSplit, check_cv

from bilevel.words import shown

Parts = list[tuple[np.ndarray, np.ndarray]]
FORMS = 'a number of folds, a splitter, pairs of (training rows, rows held out) or "split"'


def splits(cv: Any, X: np.ndarray, y: np.ndarray, classes: bool, fraction: float, seed: Any) -> Parts:
    """Return (training rows, held-out rows) of at most as many folds as the largest class has rows."""
    parts = [_checked(part, k, len(X)) for k, part in enumerate(_made(cv, X, y, classes, fraction, seed))]
    if not parts:
        raise ValueError(f"cv={shown(cv)} has no folds: pass e.g. cv=5; a generator can be used once only")
    return [_known(*part, k, y) for k, part in enumerate(parts)] if classes else parts


def _made(cv: Any, X: np.ndarray, y: np.ndarray, classes: bool, fraction: float, seed: Any) -> list[Any]:
    sizes = np.unique(y, return_counts=True)[1] if classes else np.zeros(0, int)
    if isinstance(cv, str) and cv == "split":
        return _once(X, y, sizes, fraction, seed)
    if isinstance(cv, str | bool):
        raise ValueError(f"cv must be {FORMS}, not {cv!r}: pass e.g. cv=5")
    if not isinstance(cv, int | np.integer):
        return _given(cv, X, y, classes)
    if cv < 2:
        raise ValueError(f'cv must be at least 2, not {cv}: pass e.g. cv=5, or cv="split" for a single split')
    count = max(min(int(cv), sizes.max(initial=0) or len(X)), 2)
    kind = StratifiedKFold if sizes.max(initial=0) > 1 else KFold
    with warnings.catch_warnings():  # `_known` warns about the rows that matter
        warnings.filterwarnings("ignore", "The least populated class")
        return list(kind(count, shuffle=True, random_state=seed).split(X, y))


def _once(X: np.ndarray, y: np.ndarray, sizes: np.ndarray, fraction: float, seed: Any) -> list[Any]:
    held = int(np.ceil(fraction * len(X)))
    fits = sizes.size and sizes.min() > 1 and len(sizes) <= min(held, len(X) - held)
    kind = StratifiedShuffleSplit if fits else ShuffleSplit
    try:
        return list(kind(1, test_size=fraction, random_state=seed).split(X, y))
    except ValueError as error:
        raise ValueError(
            f"validation_fraction={fraction} of {len(X)} rows leaves none to train on: pass e.g. 0.2"
        ) from error


def _given(cv: Any, X: np.ndarray, y: np.ndarray, classes: bool) -> list[Any]:
    try:
        splitter: Any = check_cv(cv, y, classifier=classes)
        return list(splitter.split(X, y))
    except (TypeError, ValueError) as error:
        if _needs_groups(cv, X, y):
            raise ValueError(
                f"{shown(cv)} splits rows by their groups, which fit does not know: pass its folds, "
                "cv=list(splitter.split(X, y, groups)). The parameter `groups` is for features"
            ) from error
        if hasattr(cv, "split"):
            raise
        raise ValueError(f"cv must be {FORMS}, not {shown(cv)}: pass e.g. cv=5") from error


def _needs_groups(cv: Any, X: np.ndarray, y: np.ndarray) -> bool:
    """Return whether a splitter that failed succeeds once every row has a group."""
    try:
        return bool(list(cv.split(X, y, np.arange(len(X)))))
    except Exception:  # it is no splitter, or fails for another reason
        return False


def _checked(part: Any, k: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of a fold, or raise if a held-out row is also a training row."""
    try:
        train, held = (_numbers(each, k, rows) for each in part)
    except TypeError as error:
        raise ValueError(
            f"fold {k} of cv is {shown(part)}, not a pair (training rows, rows held out): pass e.g. cv=5"
        ) from error
    if both := set(train.tolist()) & set(held.tolist()):
        raise ValueError(
            f"fold {k} of cv trains on {len(both)} of the rows that it holds out, such as {min(both)}: training rows "
            "cannot validate penalties; leave these rows out of one part"
        )
    return train, held


def _numbers(part: Any, k: int, rows: int) -> np.ndarray:
    found = np.asarray(part)
    if found.dtype == bool and found.shape == (rows,):
        found = np.flatnonzero(found)
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iu":
        raise ValueError(
            f"fold {k} of cv has {shown(part)} as a part: pass numbers of rows, at least one, or a mask of {rows}"
        )
    if found.min() < 0 or found.max() >= rows:
        out = found[(found < 0) | (found >= rows)][0]
        raise ValueError(f"fold {k} of cv has row {out}, but X has {rows} rows, counted from 0")
    return found


def _known(train: np.ndarray, held: np.ndarray, k: int, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop held-out rows of classes without training rows. Their loss is infinite for all penalties."""
    trained = np.unique(y[train])
    if len(trained) < 2:
        raise ValueError(
            f"fold {k} of cv trains on one class only: shuffle the rows, or pass stratified folds such as cv=5"
        )
    known = np.isin(y[held], trained)
    if known.all():
        return train, held
    if not known.any():
        raise ValueError(
            f"fold {k} of cv trains on none of the classes that it holds out: pass stratified folds"
        )
    warnings.warn(
        f"fold {k} of cv holds out {(~known).sum()} rows of classes that it does not train on: they do not count; "
        "give every class at least two rows, in different folds",
        stacklevel=6,
    )
    return train, held[known]
