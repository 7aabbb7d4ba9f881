"""Format of a claim: the paper's statement, our numbers and a verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from bilevel.lab.paper.registry import Results
from bilevel.lab.paper.tables import select

TOLERANCE = 0.2  # on exponents

Answering = Callable[[Results], "Answer"]


class Verdict(StrEnum):
    HOLDS = "holds"
    CAVEAT = "holds with a caveat"
    DIFFERS = "differs"
    NOT_JUDGED = "not judged"  # the experiment was not run, or too short a version of it


@dataclass(frozen=True)
class Claim:
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
    """Claim, the experiment it needs, and the function that answers it from the tables."""

    where: str
    claim: str
    paper: str
    needs: str
    answer: Answering

    def judge(self, results: Results) -> Claim:
        if self.needs in results.manifests:
            answer = self.answer(results)
        else:
            answer = Answer("–", Verdict.NOT_JUDGED, f"{self.needs} has not been run")
        return Claim(self.where, self.claim, self.paper, *answer)


def above(smallest: dict[str, float], holds: str) -> Answer:
    """Compare a bound with runs. `smallest` is the least ratio bound/measured, by which M the bound has."""
    ours = f"bound ≥ {smallest['paper']:.3g} × measured for every κ (valid M: {smallest['valid']:.3g} ×)"
    if smallest["valid"] < 1:
        return Answer(ours, Verdict.DIFFERS, "The bound is below a run although its constants are valid.")
    if smallest["paper"] < 1:
        why = "Only with a valid M; with the paper's M the bound is below a run."
        return Answer(ours, Verdict.CAVEAT, why)
    return Answer(ours, Verdict.HOLDS, holds)


def exponents(results: Results, method: str, quantity: str) -> dict[str, float]:
    rows = select(results["table1_exponents.csv"], method=method, quantity=quantity)
    return dict(zip(rows["analysis"].tolist(), rows["exponent"].tolist(), strict=True))


def near(*pairs: tuple[float, int]) -> bool:
    """Return whether every exponent is near the claimed one."""
    return all(abs(found - claimed) <= TOLERANCE for found, claimed in pairs)


QUESTIONS: list[Question] = []  # in the order of their definition


def question(where: str, claim: str, paper: str, *, needs: str) -> Callable[[Answering], Answering]:
    """Register the decorated function as the answer to a claim."""

    def register(answer: Answering) -> Answering:
        QUESTIONS.append(Question(where, claim, paper, needs, answer))
        return answer

    return register
