"""The paper's claims, judged by code from the tables."""

from bilevel.lab.paper.claims import aid, itd, real
from bilevel.lab.paper.claims.verdict import Claim as Claim, Verdict as Verdict
from bilevel.lab.paper.results import Results

QUESTIONS = (*aid.QUESTIONS, *itd.QUESTIONS, *real.QUESTIONS)


def judge(results: Results) -> list[Claim]:
    """One row for every claim, in the paper's order."""
    return [question.judge(results) for question in QUESTIONS]
