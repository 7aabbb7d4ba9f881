"""One step of each method as one would write it in JAX without a library: the standard that `bl.run` is held to.

Each maps (x, y, v) to (x, y, v). A product at a point is one `jax.jvp` of the gradient that is asked for: ∇_x g alone
for a cross product, ∇_y g alone for a Hessian product, both at once where a method takes both along one direction.
Nothing is stored for a later product, and where the layers are rematerialized so are their tangents.
"""

import jax

ALPHA, ETA, BETA = 0.1, 0.1, 0.1  # steps on y, v and x


def minus(a, c, b):
    return jax.tree.map(lambda a, b: a - c * b, a, b)


def plain(f, g, x, y, v, data):
    """A gradient step on y, for comparison."""
    return x, minus(y, ALPHA, jax.grad(g, 1)(x, y, data.inner)), v


def itd(f, g, x, y, v, data):
    ahead = minus(y, ALPHA, jax.grad(g, 1)(x, y, data.inner))
    f_x, f_y = jax.grad(f, (0, 1))(x, ahead, data.outer)
    _, cross = jax.jvp(lambda y: jax.grad(g)(x, y, data.inner), (y,), (f_y,))
    return minus(x, BETA, minus(f_x, ALPHA, cross)), ahead, v


def soba(f, g, x, y, v, data):
    f_x, f_y = jax.grad(f, (0, 1))(x, y, data.outer)
    (_, g_y), (cross, hessian) = jax.jvp(lambda y: jax.grad(g, (0, 1))(x, y, data.inner), (y,), (v,))
    return minus(x, BETA, minus(f_x, 1, cross)), minus(y, ALPHA, g_y), minus(v, ETA, minus(hessian, 1, f_y))


def aid(f, g, x, y, v, data):
    y = minus(y, ALPHA, jax.grad(g, 1)(x, y, data.inner))
    f_x, f_y = jax.grad(f, (0, 1))(x, y, data.outer)
    _, hessian = jax.jvp(lambda y: jax.grad(g, 1)(x, y, data.inner), (y,), (v,))
    v = minus(v, ETA, minus(hessian, 1, f_y))
    _, cross = jax.jvp(lambda y: jax.grad(g)(x, y, data.inner), (y,), (v,))
    return minus(x, BETA, minus(f_x, 1, cross)), y, v


STEPS = {"plain": plain, "ITD": itd, "SOBA": soba, "AID": aid}

# Operations that a step cannot do without, in forward passes over one level's batch: by weights, and within attention.
# A gradient takes 3, a tangent of the losses 2, a tangent of the gradient 6. A plain step is a gradient; ITD two
# and a tangent of the losses; SOBA two and a tangent of one. AID takes two gradients, then at ŷ a tangent of the
# gradient on top of a pass forward and one back (without the derivatives by weights: 2, within attention 3), and a
# tangent of the losses.
FORWARDS = {"plain": (3, 3), "ITD": (8, 8), "SOBA": (12, 12), "AID": (16, 17)}
