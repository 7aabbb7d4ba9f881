"""Every method on the same tasks: how good x is for so many oracle calls, and for so many seconds."""

from bilevel.compare.measure import Curve as Curve, Point as Point, measure as measure
from bilevel.compare.methods import METHODS as METHODS, Method as Method
from bilevel.compare.tasks import TASKS as TASKS, Task as Task
