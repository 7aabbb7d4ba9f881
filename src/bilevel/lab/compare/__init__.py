"""Comparison of every method on the same tasks: the quality of x by oracle calls and by seconds."""

from bilevel.lab.compare.measurement import Curve as Curve, Point as Point, measure as measure
from bilevel.lab.compare.methods import METHODS as METHODS, Method as Method
from bilevel.lab.compare.tasks import TASKS as TASKS, Task as Task
