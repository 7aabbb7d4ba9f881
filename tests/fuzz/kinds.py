"""What an argument is, and which of the odd values are none there: all others must be refused."""

from dataclasses import dataclass

from fuzz.values import ODD

BIG = ("2^31", "2^32", "2^63", "2^64", "10^30")
POSITIVE = ("one", "half", "tiny", "large", "tracer", "double scalar")
NUMBER = ("zero", *POSITIVE)
REAL = (
    "zero",
    "minus one",
    "one",
    *BIG,
    "half",
    "tiny",
    "large",
    "double scalar",
)  # of certificates, which take arrays
REALS = (
    *REAL,
    "whole numbers",
    "floats",
    "doubles",
    "big-endian",
    "long doubles",
    "matrix",
    "range",
    "zero-size",
    "empty list",
    "empty tuple",
)
TREE = (
    "one",
    "half",
    "tiny",
    "zero",
    "minus one",
    "tracer",
    "big-endian",
    "floats",
    "matrix",
    "double scalar",
    "large",
    "nested list",
    "solver",
    "batch",
    "adjoint",
    "examples",
)
FUNCTIONS = (
    "function of nothing",
    "function of one",
    "function of five",
    "function with a keyword",
    "coroutine",
    "class",
    "hook",
)

ITERABLES = (
    "list",
    "empty list",
    "nested list",
    "empty tuple",
    "set",
    "range",
    "rule",
    "nan array",
    "long doubles",
    "objects",
    "strings",
    "structured",
    "masked",
    "big-endian",
    "dates",
    "zero-size",
    "complexes",
    "truths",
    "whole numbers",
    "floats",
    "doubles",
    "matrix",
    "examples",
)


@dataclass(frozen=True)
class Kind:
    """`may`: the values that it may accept. `skip`: those that would be right, and work for long."""

    may: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    @property
    def values(self) -> list[str]:
        return [name for name in ODD if name not in self.skip]


KINDS = {
    "problem": Kind(("problem",)),
    "solver": Kind(("solver",)),
    "constants": Kind(("constants",)),
    "constants or blocks": Kind(("constants", "blocks")),
    "noise": Kind(("noise",)),
    "step size": Kind(POSITIVE),
    "rule": Kind((*POSITIVE, "rule")),
    "rule or none": Kind((*POSITIVE, "rule", "none")),
    "adjoint": Kind((*POSITIVE, "rule", "adjoint")),
    "adjoint or none": Kind((*POSITIVE, "rule", "adjoint", "none")),
    "adjoint alone": Kind(("adjoint", "none")),
    "positive": Kind(POSITIVE),
    "number": Kind(NUMBER),
    "share": Kind(("zero", "one", "half", "tiny", "tracer", "double scalar")),
    "schedule": Kind((*NUMBER, "function of one", "class")),
    "count": Kind(("one",)),
    "count or none": Kind(("one", "none")),
    "count from zero": Kind(("zero", "one")),
    "count from zero or none": Kind(("zero", "one", "none")),
    "large count": Kind(("one", "zero", *BIG)),
    "seed": Kind(("zero", "one", "2^31")),
    "traced seed": Kind(("zero", "one", "2^31", "tracer")),
    "choice": Kind(),
    "text": Kind(("text", "empty text", "text of a number", "text with NUL", "text with a surrogate")),
    "text or none": Kind(("text", "text of a number", "text with NUL", "text with a surrogate", "none")),
    "function": Kind(FUNCTIONS),
    "function or none": Kind((*FUNCTIONS, "none")),
    "strength": Kind(
        (
            *NUMBER,
            *BIG,
            *FUNCTIONS,
            "whole numbers",
            "floats",
            "doubles",
            "big-endian",
            "matrix",
            "zero-size",
            "long doubles",
        )
    ),
    "bound": Kind(
        (
            *NUMBER,
            *BIG,
            *FUNCTIONS,
            "5000 digits",
            "long double",
            "whole numbers",
            "floats",
            "doubles",
            "big-endian",
            "matrix",
            "zero-size",
            "long doubles",
        )
    ),
    "real": Kind(REAL),
    "reals": Kind(REALS),
    "reals or none": Kind((*REALS, "none")),
    "tree": Kind(TREE),
    "batch": Kind(("batch", "none")),
    "data": Kind(("batch", "stream", "none")),
    "anything": Kind(tuple(ODD)),
}
NONE = ("none",)
KINDS |= {
    "refused": Kind(),
    "none alone": Kind(NONE),
    "first or none": Kind(("zero", "none")),
    "preconditioner": Kind(NONE),
    "share or schedule": Kind(("one", "half", "tiny", "tracer", "double scalar", "function of one")),
    "objective": Kind(("coroutine", "class")),  # it takes (x, y): what it returns is seen later
    "groups": Kind(("whole numbers", "range", "zero", "one")),
    "loader": Kind(ITERABLES),  # of batches that are looked at when they come
    "evaluated": Kind(
        (
            *ITERABLES,
            *TREE,
            *BIG,
            "true",
            "nan",
            "inf",
            "minus inf",
            "complex",
            "none",
            "empty dict",
            "random key",
            "run",
        )
    ),
    "start": Kind(tuple(name for name in TREE if name != "tracer")),
    "state": Kind(("run",)),
    "solver state": Kind(),
    "result": Kind(("result",)),
    "loader data": Kind(("batch", "stream", "none")),
    "hooks": Kind(("empty list", "empty tuple")),
    "record": Kind(("none", "function of five")),
    "probe": Kind(NONE),
    "tolerance": Kind(("none", *REAL)),
    "truth": Kind(("true", "zero", "one", "none")),
    "seeds": Kind(("zero", "one", "2^31", "range", "whole numbers")),
    "metric": Kind(),
    "lane": Kind(("zero", "minus one")),
    "plain positive": Kind(("one", "half", "tiny", "large", "double scalar")),
    "plain number": Kind(("zero", "one", "half", "tiny", "large", "double scalar")),
    "traced positive": Kind((*POSITIVE,)),
    "traced number": Kind((*NUMBER, *BIG, "minus one")),
    "kappa": Kind(("one", "tracer", "double scalar")),
    "wide seed": Kind(("zero", "one", "5000 digits", *BIG)),
    "file": Kind(("text", "text of a number", "path")),
    "dtype": Kind(),
    "examples": Kind(("examples",)),
    "examples of classes": Kind(),
    "vector": Kind(("none", *TREE)),
    "layer": Kind(("matrix",)),
    "rows": Kind(),
    "row numbers": Kind(("whole numbers",)),
    "labels": Kind(("whole numbers",)),
    "classes": Kind(BIG),
    "rhythm": Kind(("none", "one")),
    "points": Kind(("empty list", "empty tuple", "empty dict")),
}
