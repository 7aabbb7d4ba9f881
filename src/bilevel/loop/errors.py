"""The error of a run that did not end well."""

from typing import Any


class RunError(RuntimeError):
    """A hook, a loader or an objective raised during a run, or `result.check()` found that the run did not end well.

    If something raised, the original error is the cause. `result` is the result so far: continue from it with
    `resume=error.result`. It is `None` if the error came before the run began.
    """

    def __init__(self, message: str, result: Any):
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result)
