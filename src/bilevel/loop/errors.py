"""Error of a run that did not end well."""

from collections.abc import Callable
from typing import Any


class RunError(RuntimeError):
    """Error of a hook, a loader or an objective during a run, or of a run that did not end well.

    If something raised, the original error is the cause. `result` is the result so far: continue from it with
    `resume=error.result`. It is `None` if the error came before the run began.
    """

    def __init__(self, message: str, result: Any):
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result)


class Failure:
    """Error that was raised during a run.

    The traceback refers to the frames of the run, and these refer to the failure. `forget` breaks that cycle.
    """

    what: str
    error: Any  # None once it is forgotten

    def __init__(self, what: str, error: BaseException | None):
        self.what, self.error = what, error

    @property
    def is_interrupt(self) -> bool:
        return isinstance(self.error, KeyboardInterrupt)

    def blamed(self, what: str, error: BaseException | None = None) -> "Failure":
        """Return the failure under another name, or with an error that explains it."""
        after = Failure(what, error or self.error)
        self.forget()
        return after

    def forget(self) -> None:
        self.error = None

    def run_error(self, message: str, result: Any) -> RunError:
        """Return the error that ends the run; its cause is what raised."""
        error = RunError(message, result)
        error.__cause__ = self.error
        self.forget()
        return error


def caught(
    what: str, function: Callable[..., Any], *arguments: Any, interruptible: bool = False
) -> tuple[Any, Failure | None]:
    """Return the function's result and None, or None and the failure; `interruptible` includes Ctrl-C."""
    try:
        return function(*arguments), None
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and not interruptible:
            raise
        return None, Failure(what, error)
