"""From a problem's constants to step sizes and a bound, and the bound against a real run.

python examples/certificates.py [--steps 10000]
"""

import argparse

import jax
import jax.numpy as jnp

import bilevel as bl
from bilevel import theory

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=10_000)
steps = parser.parse_args().steps

jax.config.update("jax_enable_x64", True)
q = bl.problems.quadratic(mu=0.1, kappa=5.0)
x0 = jnp.ones(2)
constants = theory.Constants(mu=0.1, L=0.5, M=0.1 * 2**0.5, rho=0.0)
gap = float(q.value(x0) - q.value(q.solution))

paper, star = theory.aid(constants), theory.star.aid(constants)
beta = star.best_beta(steps, gap)
solver = bl.aid(q.problem, inner=star.alpha, adjoint=star.eta, outer=beta)
size = lambda x: jnp.sum(q.hypergradient(x) ** 2)
start = x0, q.inner_solution(x0)
result = bl.run(solver, *start, steps=steps, record=lambda state, info: {"size": size(state.x)})

measured = jnp.mean(jnp.concatenate([size(x0)[None], result.trace["size"][:-1]]))
print(f"outer step: the paper certifies {paper.beta:.2e}, the star certificate {beta:.2e}")
print(
    f"mean ‖∇Φ‖² over {steps} steps: measured {measured:.2e}, bound {star.bound(steps, gap, beta=beta):.2e}"
)
print(f"the paper's bound at its own step: {paper.bound(steps, gap):.2e}")
