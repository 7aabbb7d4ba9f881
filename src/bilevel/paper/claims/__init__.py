"""The paper's claims, judged by code from the tables."""

from bilevel.paper.claims import aid, itd, real
from bilevel.paper.claims.verdict import Claim as Claim, Verdict as Verdict
from bilevel.paper.results import Results

QUESTIONS = (*aid.QUESTIONS, *itd.QUESTIONS, *real.QUESTIONS)


def judge(results: Results) -> list[Claim]:
    """One row for every claim, in the paper's order."""
    return [question.judge(results) for question in QUESTIONS]
