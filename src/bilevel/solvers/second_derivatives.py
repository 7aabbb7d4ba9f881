"""Operations without a second derivative: JAX says which rule is missing, this says what to do about it."""

from collections.abc import Iterator
from contextlib import contextmanager

from bilevel.checks.objectives import NO_GRADIENT

# Kernels, callbacks and other libraries' functions come with a backward pass of their own, of which there is no
# derivative. First derivatives were taken before any step was, so where JAX complains in a step, it is of the second.
COMPLAINTS = (
    "forward-mode autodiff (jvp) to a custom_vjp function",
    "callbacks do not support JVP",
    "does not support reverse-mode autodiff",
    "Linearization failed",
    "Differentiation rule for 'custom_lin' not implemented",
)

NOTE = (
    "Second derivatives are taken here, and an operation in an objective has only a first one. Write that operation "
    "in JAX's own, give it a custom_jvp instead of a custom_vjp, or take a method of first derivatives alone, such as "
    "bl.bome, bl.f2sa or bl.sama."
)


def explain(error: BaseException) -> None:
    """Adds what to do to an error of this kind, as its last note; all others are left as they are."""
    notes = getattr(error, "__notes__", [])
    if NO_GRADIENT not in notes and any(complaint in str(error) for complaint in COMPLAINTS):
        error.__notes__ = [note for note in notes if note != NOTE]
        error.add_note(NOTE)


@contextmanager
def explained() -> Iterator[None]:
    """Whatever is traced within."""
    try:
        yield
    except Exception as error:
        explain(error)
        raise
