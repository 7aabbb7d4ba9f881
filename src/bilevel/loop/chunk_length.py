"""How many steps to take before the host looks again: by the clock, whatever it is that takes the time."""

SECONDS = 0.25  # of work between two looks
GROWTH = 64  # at most, from one chunk to the next: a first guess may be far off


class Pace:
    """Short first, then longer until a chunk takes about `SECONDS`."""

    def __init__(self, seconds_per_step: float | None, every: int | None = None):
        self.every = every
        self.seconds_per_step = seconds_per_step
        self._last = 1 if seconds_per_step is None else None

    def steps(self, left: int, at: int = 0) -> int:
        """The length of the next chunk, which begins at step `at`: with `every`, up to its next multiple."""
        if self.every is not None:
            return min(self.every - at % self.every, left)
        if self.seconds_per_step is None:
            return min(1, left)
        wanted = max(1, round(SECONDS / max(self.seconds_per_step, 1e-9)))
        if self._last is not None:
            wanted = min(wanted, GROWTH * self._last)
        return min(wanted, left)

    def took(self, steps: int, seconds: float, compiled: bool) -> None:
        """A chunk is done. One during which something was compiled says nothing about the next."""
        self._last = max(steps, 1)
        if not compiled:
            self.seconds_per_step = seconds / max(steps, 1)
