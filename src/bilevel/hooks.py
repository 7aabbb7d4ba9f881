"""Hooks of a run, with their arguments and results: see `Hook`."""

from bilevel.loop.checkpoints.hook import Checkpoint as Checkpoint
from bilevel.loop.diagnose.hook import Diagnose as Diagnose
from bilevel.loop.diagnose.report import Diagnosis as Diagnosis, Finding as Finding
from bilevel.loop.hooks.base import Hook as Hook
from bilevel.loop.hooks.evaluate import Evaluate as Evaluate
from bilevel.loop.hooks.event import Event as Event, Stop as Stop
from bilevel.loop.hooks.files import CSV as CSV, JSONLines as JSONLines, TensorBoard as TensorBoard
from bilevel.loop.hooks.live_view import Live as Live, Progress as Progress
from bilevel.loop.hooks.metrics import Best as Best, EarlyStopping as EarlyStopping, Tolerance as Tolerance
from bilevel.loop.hooks.probe import Probe as Probe
