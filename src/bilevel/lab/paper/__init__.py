"""Experiments of the paper. Each computes tables; figures, verdicts and the report read only these tables.

experiment (fig1.py, …) → CSV and manifest (runner.py) → figures (plots/), verdicts (claims/) → report
(report/)
"""
