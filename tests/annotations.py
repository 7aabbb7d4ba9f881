"""Check annotations at run time: with jaxtyping if they name a shape, otherwise only with beartype.

jaxtyping binds the arguments, remembers sizes, and checks before and after a call. Most annotations name no shape: for
these, beartype finds the same faults in a fraction of the time.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

BY_BEARTYPE = beartype(conf=BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def check(package: str) -> None:
    """Check the annotations of every module of the package that is imported later."""
    jaxtyping.jaxtyped = _checked
    jaxtyping.install_import_hook(package, "beartype.beartype")


def _checked(*, typechecker: Callable, by_jaxtyping: Callable = jaxtyping.jaxtyped) -> Callable:
    def decorate(made: Any) -> Any:
        # beartype would keep what a function closes over.
        if not isinstance(made, FunctionType) or made.__closure__ or _may_name_a_shape(made):
            return by_jaxtyping(made, typechecker=typechecker)
        looking = BY_BEARTYPE(made)

        @wraps(made)
        def either(*arguments, **named):
            return (made if jaxtyping.config.jaxtyping_disable else looking)(*arguments, **named)

        return made if looking is made else either  # nothing is annotated

    return decorate


def _may_name_a_shape(function: FunctionType) -> bool:
    try:
        annotations = inspect.get_annotations(function, eval_str=True)
    except NameError:  # the annotation is defined below
        return True
    return any(map(_names_a_shape, annotations.values()))


def _names_a_shape(annotation: Any) -> bool:
    is_shape = isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray)
    return is_shape or any(map(_names_a_shape, get_args(annotation)))
