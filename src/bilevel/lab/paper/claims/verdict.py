"""A claim of the paper, and what our tables say about it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from bilevel.lab.paper.results import Results


class Verdict(StrEnum):
    HOLDS = "holds"
    CAVEAT = "holds with a caveat"
    DIFFERS = "differs"
    NOT_JUDGED = "not judged"  # the experiment was not run, or too short a version of it


@dataclass(frozen=True)
class Claim:
    """One row of the report."""

    where: str
    claim: str
    paper: str
    ours: str
    verdict: Verdict
    why: str


class Answer(NamedTuple):
    ours: str
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Question:
    """A claim, the experiments it needs, and the function that answers it from their tables."""

    where: str
    claim: str
    paper: str
    needs: tuple[str, ...]
    answer: Callable[[Results], Answer]

    def judge(self, results: Results) -> Claim:
        missing = [name for name in self.needs if name not in results.manifests]
        if missing:
            given = Answer("–", Verdict.NOT_JUDGED, f"{' and '.join(missing)} has not been run")
        else:
            given = self.answer(results)
        return Claim(self.where, self.claim, self.paper, *given)
