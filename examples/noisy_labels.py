"""Find wrong labels in MNIST: one weight per training image, tuned on 500 clean validation images.

python examples/noisy_labels.py [--steps 300]
"""

import argparse
from dataclasses import replace

import jax
import numpy as np
import optax

import bilevel as bl
from bilevel.problems.reweighting import PROBLEM, initial_mlp
from bilevel.problems.scores import roc_auc

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=300)
steps = parser.parse_args().steps

digits = bl.data.mnist()
train, valid = digits.train.split(2000, 500, seed=0)
labels, wrong = bl.data.corrupt_labels(train.targets, 0.2, classes=10, seed=1)
data = bl.Batch(inner=replace(train, targets=labels), outer=valid)

solver = bl.aid(PROBLEM, inner=optax.sgd(0.1, momentum=0.9), adjoint=0.1, outer=optax.adam(0.1))
x0, y0 = np.zeros(2000, np.float32), initial_mlp(784, 256, 10, seed=2)
result = bl.run(solver, x0, y0, data=data, steps=steps, progress=True)

trust = np.asarray(jax.nn.sigmoid(result.x))
print(f"data: {digits.source}")
print(f"{result.status}")
print(f"mean weight of right labels {trust[~wrong].mean():.3f}, of wrong ones {trust[wrong].mean():.3f}")
print(f"ROC-AUC of 'low weight means wrong label': {roc_auc(-trust, wrong):.3f}")
