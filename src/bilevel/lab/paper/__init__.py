"""The paper's experiments: each computes tables; plots, verdicts and the report are made from the tables alone.

experiment (fig1.py, …) → CSV and manifest (runner.py) → figures (plots/), verdicts (claims/) → report (report/)
"""
