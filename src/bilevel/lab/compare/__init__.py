"""Every method on the same tasks: how good x is after so many oracle calls and so many seconds."""

from bilevel.lab.compare.measurement import Curve as Curve, Point as Point, measure as measure
from bilevel.lab.compare.methods import METHODS as METHODS, Method as Method
from bilevel.lab.compare.tasks import TASKS as TASKS, Task as Task
