"""The iterates that every contestant must arrive at: NumPy in float64, all derivatives written out by hand.

    g(x, y) = (1/n) Σ_i σ(x_i) ℓ(y; a_i, b_i)        f(x, y) = (1/n') Σ_j ℓ(y; a'_j, b'_j)

ℓ is the cross-entropy of a network with one hidden layer of rectifiers; y = (W1, b1, W2, b2).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from race.tasks import Parameters, Task


def sigmoid(x: NDArray) -> NDArray:
    return 1 / (1 + np.exp(-x))


def combine(a: Parameters, c: float, b: Parameters) -> Parameters:
    """a + c b."""
    return tuple(p + c * q for p, q in zip(a, b, strict=True))


@dataclass(frozen=True)
class Pass:
    """Forward and back through the network at y, example i having the weight w_i."""

    inputs: NDArray
    labels: NDArray
    w: NDArray
    y: Parameters

    def __post_init__(self) -> None:
        W1, b1, W2, b2 = self.y
        before = self.inputs @ W1 + b1
        hidden = np.maximum(before, 0)
        scores = hidden @ W2 + b2
        shifted = scores - scores.max(1, keepdims=True)
        P = np.exp(shifted) / np.exp(shifted).sum(1, keepdims=True)
        miss = P - np.eye(P.shape[1])[self.labels]
        losses = -np.log(P[np.arange(len(P)), self.labels])
        for name, value in dict(on=before > 0, hidden=hidden, P=P, miss=miss, losses=losses).items():
            object.__setattr__(self, name, value)

    def gradient(self) -> Parameters:
        """Of Σ_i w_i ℓ_i in y."""
        D = self.w[:, None] * self.miss
        back = (D @ self.y[2].T) * self.on
        return self.inputs.T @ back, back.sum(0), self.hidden.T @ D, D.sum(0)

    def along(self, v: Parameters) -> tuple[NDArray, Parameters]:
        """Along v: the derivative of every ℓ_i, and that of the gradient, which is the Hessian's product with v."""
        V1, c1, V2, c2 = v
        hidden_dot = (self.inputs @ V1 + c1) * self.on
        scores_dot = hidden_dot @ self.y[2] + self.hidden @ V2 + c2
        P_dot = self.P * (scores_dot - (self.P * scores_dot).sum(1, keepdims=True))
        D, D_dot = self.w[:, None] * self.miss, self.w[:, None] * P_dot
        back_dot = (D_dot @ self.y[2].T + D @ V2.T) * self.on
        hessian = (
            self.inputs.T @ back_dot,
            back_dot.sum(0),
            hidden_dot.T @ D + self.hidden.T @ D_dot,
            D_dot.sum(0),
        )
        return (self.miss * scores_dot).sum(1), hessian


@dataclass(frozen=True)
class Reweighting:
    train: tuple[NDArray, NDArray]
    valid: tuple[NDArray, NDArray]

    def inner(self, x: NDArray, y: Parameters) -> Pass:
        return Pass(*self.train, sigmoid(x) / len(x), y)

    def outer(self, y: Parameters) -> Pass:
        n = len(self.valid[1])
        return Pass(*self.valid, np.full(n, 1 / n), y)

    def cross(self, x: NDArray, losses_dot: NDArray) -> NDArray:
        """∇²_xy g · v, from the derivatives of the ℓ_i along v."""
        return sigmoid(x) * (1 - sigmoid(x)) / len(x) * losses_dot


Iterates = tuple[NDArray, Parameters]


def itd(p: Reweighting, t: Task, x: NDArray, y: Parameters) -> Iterates:
    for _ in range(t.steps):
        at = p.inner(x, y)
        y = combine(y, -t.alpha, at.gradient())
        losses_dot, _ = at.along(p.outer(y).gradient())
        x = x + t.beta * t.alpha * p.cross(x, losses_dot)
    return x, y


def aid(p: Reweighting, t: Task, x: NDArray, y: Parameters) -> Iterates:
    """One step on the adjoint, from where the last ended."""
    v = combine(y, -1.0, y)
    for _ in range(t.steps):
        y = combine(y, -t.alpha, p.inner(x, y).gradient())
        at, b = p.inner(x, y), p.outer(y).gradient()
        v = combine(v, -t.alpha, combine(at.along(v)[1], -1.0, b))
        x = x + t.beta * p.cross(x, at.along(v)[0])
    return x, y


def aid_neumann(p: Reweighting, t: Task, x: NDArray, y: Parameters) -> Iterates:
    """The same work on the adjoint, one Hessian product, but from zero: v = α(b + (I − αH) b)."""
    for _ in range(t.steps):
        y = combine(y, -t.alpha, p.inner(x, y).gradient())
        at, b = p.inner(x, y), p.outer(y).gradient()
        term = combine(b, -t.alpha, at.along(b)[1])
        v = tuple(t.alpha * part for part in combine(b, 1.0, term))
        x = x + t.beta * p.cross(x, at.along(v)[0])
    return x, y


def soba(p: Reweighting, t: Task, x: NDArray, y: Parameters) -> Iterates:
    v = combine(y, -1.0, y)
    for _ in range(t.steps):
        at, b = p.inner(x, y), p.outer(y).gradient()
        losses_dot, hessian = at.along(v)
        v_next = combine(v, -t.alpha, combine(hessian, -1.0, b))
        x, y, v = x + t.beta * p.cross(x, losses_dot), combine(y, -t.alpha, at.gradient()), v_next
    return x, y


def ridge(t: Task) -> Iterates:
    """g(x, y) = ‖Ay − b‖²/2n + Σ_j exp(x_j) y_j²/2, f(x, y) = ‖A'y − b'‖²/2n', both systems solved exactly."""
    (A, b), (A_, b_), x = t.train, t.valid, t.x0
    y = t.y0[0]
    for _ in range(t.steps):
        H = A.T @ A / len(A) + np.diag(np.exp(x))
        y = np.linalg.solve(H, A.T @ b / len(A))
        v = np.linalg.solve(H, A_.T @ (A_ @ y - b_) / len(A_))
        x = x + t.beta * np.exp(x) * y * v
    return x, (y,)


METHODS: dict[str, Callable[..., Iterates]] = {
    "itd": itd,
    "aid": aid,
    "aid_neumann": aid_neumann,
    "soba": soba,
}


def iterates(method: str, task: Task) -> Iterates:
    """x and y after `task.steps` steps of the method."""
    if method == "ridge":
        return ridge(task)
    wide = lambda arrays: tuple(a if a.dtype.kind == "i" else a.astype(np.float64) for a in arrays)
    problem = Reweighting(wide(task.train), wide(task.valid))
    return METHODS[method](problem, task, task.x0.astype(np.float64), wide(task.y0))


def error(task: Task, found: Iterates, expected: Iterates) -> float:
    """The larger of the two relative errors of x and of y, relative to how far they have traveled."""

    def relative(a: Parameters, b: Parameters, start: Parameters) -> float:
        flat = lambda parts: np.concatenate([np.ravel(part).astype(np.float64) for part in parts])
        return float(np.linalg.norm(flat(a) - flat(b)) / np.linalg.norm(flat(b) - flat(start)))

    (x, y), (x_, y_) = found, expected
    return max(relative((x,), (x_,), (task.x0,)), relative(y, y_, task.y0))
