"""Claims of the paper, checked by code against the tables."""

from bilevel.lab.paper.claims import aid as aid, itd as itd, real as real
from bilevel.lab.paper.claims.verdict import QUESTIONS, Claim as Claim, Verdict as Verdict
from bilevel.lab.paper.registry import Results


def judge(results: Results) -> list[Claim]:
    """Return one row for every claim, in the paper's order."""
    return [question.judge(results) for question in QUESTIONS]
