"""Products and decompositions of matrices, and Fourier transforms.

XLA accumulates products of half precision in float32, as torch does. torch raises an error at run time if a matrix is
singular or not positive definite. Here the results are infinite or NaN.
"""

import jax
import jax.numpy as jnp
from jax import lax

from bilevel.torch._table.registry import register

for names, function in {
    ("aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.matmul.default"): jnp.matmul,
    ("aten.dot.default",): jnp.dot,
    ("aten.vdot.default",): jnp.vdot,
    ("aten.inner.default",): jnp.inner,
    ("aten.outer.default",): jnp.outer,
    ("aten.kron.default",): jnp.kron,
    ("aten.trace.default",): jnp.trace,
    ("aten.einsum.default",): lambda equation, tensors, path=None: jnp.einsum(equation, *tensors),
    ("aten.tensordot.default",): lambda a, b, dims_a, dims_b: jnp.tensordot(a, b, (dims_a, dims_b)),
    ("aten.linalg_cross.default",): lambda a, b, dim=-1: jnp.cross(a, b, axis=dim),
    ("aten.linalg_inv.default",): jnp.linalg.inv,
    ("aten.linalg_matrix_exp.default",): jax.scipy.linalg.expm,
}.items():
    register(*names)(function)


@register("aten.linear.default")
def linear(a, weight, bias=None):
    out = lax.dot_general(a, weight, (((a.ndim - 1,), (weight.ndim - 1,)), ((), ())))
    return out if bias is None else out + bias


@register("aten.bilinear.default")
def bilinear(a, b, weight, bias=None):
    out = jnp.einsum("...i,oij,...j->...o", a, weight, b)
    return out if bias is None else out + bias


def register_sum(name, product):
    """Register beta * a + alpha * product(b, c). torch does not read a if beta is 0."""

    def function(a, b, c, beta=1, alpha=1):
        out = product(b, c) if alpha == 1 else alpha * product(b, c)
        return (
            jnp.broadcast_to(out, jnp.broadcast_shapes(out.shape, a.shape)) if beta == 0 else beta * a + out
        )

    register(f"aten.{name}.default")(function)


for name in ("addmm", "addmv", "baddbmm"):
    register_sum(name, jnp.matmul)
register_sum("addr", jnp.outer)
register_sum("addbmm", lambda b, c: jnp.einsum("bij,bjk->ik", b, c))


# Equations and factors. None stands for results that only torch's backward pass reads.


@register("aten.linalg_solve.default")
def solve(a, b, left=True):
    if b.ndim == 1 or b.shape == a.shape[:-1]:
        return jnp.linalg.solve(a, b[..., None])[..., 0]
    return jnp.linalg.solve(a, b) if left else jnp.linalg.solve(a.mT, b.mT).mT


@register("aten._linalg_solve_ex.default")
def solve_ex(a, b, left=True, check_errors=False):
    return solve(a, b, left), None, None, None


@register("aten.linalg_solve_triangular.default")
def solve_triangular(a, b, upper, left=True, unitriangular=False):
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(each, batch + each.shape[-2:]) for each in (a, b))
    return lax.linalg.triangular_solve(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


@register("aten.triangular_solve.default")
def triangular_solve(b, a, upper=True, transpose=False, unitriangular=False):
    return solve_triangular(a.mT if transpose else a, b, upper != transpose, True, unitriangular), a


def with_info(out):
    return out, jnp.any(~jnp.isfinite(out), (-2, -1))  # torch counts; here 1 means any error


@register("aten.linalg_inv_ex.default")
def inv_ex(a, check_errors=False):
    return with_info(jnp.linalg.inv(a))


@register("aten.linalg_cholesky.default", "aten.cholesky.default")
def cholesky(a, upper=False):
    return jnp.linalg.cholesky(a, upper=upper)


@register("aten.linalg_cholesky_ex.default")
def cholesky_ex(a, upper=False, check_errors=False):
    return with_info(cholesky(a, upper))


@register("aten.cholesky_solve.default")
def cholesky_solve(b, factor, upper=False):
    return jax.scipy.linalg.cho_solve((factor, not upper), b)


@register("aten.cholesky_inverse.default")
def cholesky_inverse(factor, upper=False):
    return cholesky_solve(
        jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape), factor, upper
    )


@register("aten._linalg_det.default")
def det(a):
    return jnp.linalg.det(a), None, None


@register("aten._linalg_slogdet.default")
def slogdet(a):
    return *jnp.linalg.slogdet(a), None, None


@register("aten.linalg_qr.default")
def qr(a, mode="reduced"):
    return (None, jnp.linalg.qr(a, mode)) if mode == "r" else jnp.linalg.qr(a, mode)


@register("aten._linalg_eigh.default")
def eigh(a, uplo="L", compute_v=True):
    return tuple(jnp.linalg.eigh(a)) if compute_v else (jnp.linalg.eigvalsh(a), None)


@register("aten._linalg_svd.default")
def svd(a, full_matrices=False, compute_uv=True, driver=None):
    if not compute_uv:
        return None, jnp.linalg.svd(a, compute_uv=False), None
    u, values, v = jnp.linalg.svd(a, full_matrices=False)
    if full_matrices:  # the other vectors have no derivative
        k = values.shape[-1]
        every_u, _, every_v = jnp.linalg.svd(lax.stop_gradient(a))
        u = jnp.concatenate((u, every_u[..., k:]), -1)
        v = jnp.concatenate((v, every_v[..., k:, :]), -2)
    return u, values, v


@register("aten.linalg_pinv.atol_rtol_tensor")
def pinv(a, atol=None, rtol=None, hermitian=False):
    if rtol is None:
        rtol = max(a.shape[-2:]) * jnp.finfo(a.dtype).eps if atol is None else 0.0
    if atol is not None:
        largest = jnp.linalg.svd(lax.stop_gradient(a), compute_uv=False)[..., 0]
        rtol = jnp.maximum(rtol, atol / largest)
    return jnp.linalg.pinv(a, rtol, hermitian)


# Fourier transforms, with torch's numbers for the scale of the result: 1, 1 / sqrt(n), 1 / n

FORWARD, BACKWARD = ("backward", "ortho", "forward"), ("forward", "ortho", "backward")


@register("aten._fft_r2c.default")
def fft_r2c(a, dim, normalization, onesided):
    return (jnp.fft.rfftn if onesided else jnp.fft.fftn)(a, axes=dim, norm=FORWARD[normalization])


@register("aten._fft_c2r.default")
def fft_c2r(a, dim, normalization, last_dim_size):
    sizes = [*(a.shape[d] for d in dim[:-1]), last_dim_size]
    return jnp.fft.irfftn(a, sizes, dim, BACKWARD[normalization])


@register("aten._fft_c2c.default")
def fft_c2c(a, dim, normalization, forward):
    if forward:
        return jnp.fft.fftn(a, axes=dim, norm=FORWARD[normalization])
    return jnp.fft.ifftn(a, axes=dim, norm=BACKWARD[normalization])
