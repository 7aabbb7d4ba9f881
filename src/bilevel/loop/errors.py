"""What a run raises when something that is not ours fails in the middle of it."""

from typing import Any


class RunError(RuntimeError):
    """A hook, a loader or an objective raised. The original error is the cause; nothing done before it is lost.

    `result` is what the run had reached, to look at or to go on from with `resume=error.result`; it is `None` if the
    error came before the run began.
    """

    def __init__(self, message: str, result: Any):
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result)
