"""The one table of public functions, each with a valid call. A new one is one new row; a test sees that it is there."""

from fuzz.call import Call
from fuzz.table import data, hooks, ingredients, loop, methods, pictures, problems, solvers, theory

CALLS: list[Call] = [
    call
    for part in (solvers, ingredients, loop, methods, hooks, problems, data, theory, pictures)
    for call in part.CALLS
]
