"""A run's numbers so far, in little memory however long it is."""

import numpy as np

MOST = 512  # values of a column that are kept, evenly spread over the run


class History:
    """Some rows of every column, those of every `stride`-th step, and the newest."""

    def __init__(self):
        self.stride, self.newest = 1, -1
        self.steps = np.empty(0, int)
        self.columns: dict[str, np.ndarray] = {}
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.lowest: dict[str, float] = {}

    def add(self, first: int, rows: dict[str, np.ndarray]) -> None:
        """The rows of the steps from `first` on. If there were such rows already, the run has gone back."""
        earlier, count = self.steps < first, len(next(iter(rows.values())))
        new = np.arange(-first % self.stride, count, self.stride)
        self.steps, self.newest = np.concatenate([self.steps[earlier], first + new]), first + count - 1
        for name, column in rows.items():
            values = np.asarray(column, float)
            before = self.columns.get(name, np.empty(0))[earlier]
            self.columns[name] = np.concatenate([before, values[new]])
            self.first.setdefault(name, float(values[0]))
            self.last[name] = float(values[-1])
            self.lowest[name] = float(np.fmin(np.fmin.reduce(values), self.lowest.get(name, np.inf)))
        while len(self.steps) > MOST:
            self.stride *= 2
            kept = self.steps % self.stride == 0
            self.steps = self.steps[kept]
            self.columns = {name: column[kept] for name, column in self.columns.items()}

    def course(self, name: str) -> np.ndarray:
        """The column from the beginning to now."""
        kept = len(self.steps) and self.steps[-1] == self.newest
        return self.columns[name] if kept else np.append(self.columns[name], self.last[name])
