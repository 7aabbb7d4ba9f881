"""For code that goes on with what a run found, without looking at how it ended."""

from bilevel.loop.result import Result
from bilevel.loop.status import Code


def whole(result: Result) -> Result:
    """The result of a run that took its steps; half of one is nobody's answer.

    A run turns Ctrl-C into a status, so that nothing is lost to whoever looks at it. Here it is an interrupt again.
    """
    if result.status.code is Code.INTERRUPTED:
        raise KeyboardInterrupt
    if result.status.code is Code.DIVERGED:
        raise FloatingPointError(str(result.status))
    return result
