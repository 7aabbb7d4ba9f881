"""Products and decompositions of matrices, and Fourier transforms, compared with torch."""

import pytest
import torch

from bilevel.torch._table import TABLE, register
from torch_front.operations import check, tensor

a, b, square, batch, vector = tensor(4, 6), tensor(6, 3), tensor(4, 4), tensor(2, 4, 6), tensor(6)
many = tensor(2, 3, 3) + 2 * torch.eye(3, dtype=torch.float64)
positive = many @ many.mT + torch.eye(3, dtype=torch.float64)

CASES = {
    "linear.default": [(a, tensor(3, 6), tensor(3)), (vector, tensor(3, 6)), (batch, tensor(0, 6)), (a, vector)],
    "mm.default": [(a, b), (tensor(0, 6), b), (tensor(2, 0), tensor(0, 3))],
    "bmm.default": [(batch, tensor(2, 6, 3)), (tensor(0, 4, 6), tensor(0, 6, 3))],
    "mv.default": [(a, vector)],
    "matmul.default": [
        (a, b),
        (vector, vector),
        (batch, vector),
        (vector, b),
        (tensor(5, 1, 4, 6), tensor(2, 6, 3)),
        (vector, tensor(2, 6, 3)),
    ],
    "dot.default": [(vector, tensor(6, seed=1)), (tensor(0), tensor(0))],
    "vdot.default": [(vector, tensor(6, seed=1))],
    "inner.default": [(a, batch), (vector, a), (tensor(), a)],
    "outer.default": [(vector, tensor(4)), (tensor(0), vector)],
    "addmm.default": [(tensor(3), a, b), (tensor(4, 1), a, b)],
    "addmv.default": [(tensor(4), a, vector), (tensor(), a, vector)],
    "addr.default": [(a, tensor(4), vector)],
    "baddbmm.default": [(tensor(4, 1), batch, tensor(2, 6, 3))],
    "addbmm.default": [(tensor(3), batch, tensor(2, 6, 3))],
    "bilinear.default": [
        (tensor(5, 4), tensor(5, 6), tensor(3, 4, 6), tensor(3)),
        (tensor(4), vector, tensor(3, 4, 6)),
    ],
    "einsum.default": [
        ("ij,jk->ik", [a, b]),
        ("i j, jk", [a, b]),
        ("...ij,...j->...i", [batch, vector]),
        ("ij,kj,lj->ikl", [a, b.mT, a]),
        ("ii->i", [square]),
        ("ii", [square]),
        ("bij,bij->b", [batch, batch]),
        ("i,j->ji", [vector, tensor(3)]),
        ("ij,jk->ik", [tensor(4, 1), b]),
        ("aB,Bc", [a, b]),
        (",i", [tensor(), vector]),
    ],
    "tensordot.default": [(batch, a, [2, 1], [1, 0]), (a, b, [1], [0]), (vector, tensor(2), [], [])],
    "kron.default": [(tensor(2, 3), tensor(3, 1)), (vector, tensor(2, 2))],
    "trace.default": [(square,), (a,)],
    "linalg_cross.default": [(tensor(4, 3), tensor(1, 3))],
    "linalg_inv.default": [(many,), (square,), (tensor(0, 3, 3),)],
    "linalg_inv_ex.default": [(many,)],
    "linalg_solve.default": [(many, tensor(2, 3, 2)), (many, tensor(2, 3)), (many, tensor(3)), (square, a)],
    "linalg_cholesky.default": [(positive,)],
    "linalg_cholesky_ex.default": [(positive,)],
    "cholesky.default": [(positive,), (positive[0], True)],
    "_linalg_solve_ex.default": [(many, tensor(2, 3, 2))],
    "_linalg_det.default": [(many,), (square,), (tensor(1, 1),)],
    "_linalg_slogdet.default": [(many,), (-square,)],
    "linalg_matrix_exp.default": [(many,), (square,)],
    "linalg_pinv.atol_rtol_tensor": [(many,), (a,), (b,)],
    "linalg_qr.default": [(many,), (b,), (batch,)],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_matrices(name):
    for arguments in CASES[name]:
        check(f"aten.{name}", *arguments, tolerance=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_types(dtype):
    x, y, z = (tensor(*shape, dtype=dtype) for shape in ((4, 6), (6, 3), (4, 3)))
    check("aten.mm.default", x, y)
    check("aten.addmm.default", z, x, y, beta=2, alpha=3)
    check("aten.einsum.default", "ij,jk->k", [x, y])
    if dtype is not torch.int64:
        check("aten.linear.default", x, y.mT.contiguous(), z[0])
        check("aten.addmm.default", z, x, y, beta=0.5, alpha=2.0)


def test_half_precision_accumulates_in_float32():
    ones = torch.ones(2, 3000, dtype=torch.bfloat16)  # a sum in bfloat16 ends at 256
    check("aten.mm.default", ones, ones.mT.contiguous(), tolerance=1e-6)
    check("aten.linear.default", ones, ones, tolerance=1e-6)
    check("aten.dot.default", ones[0], ones[1], tolerance=1e-6)
    check("aten.einsum.default", "ij,ij->i", [ones, ones], tolerance=1e-6)


def test_keywords_of_products():
    check("aten.linalg_cross.default", tensor(3, 2), tensor(3, 2, seed=1), dim=0)
    check("aten.addbmm.default", tensor(3), batch, tensor(2, 6, 3), beta=2, alpha=0.5)
    nan = torch.full((3,), float("nan"), dtype=torch.float64)
    check("aten.addmm.default", nan, a, b, beta=0, alpha=2)  # torch does not read it
    check("aten.addmv.default", tensor(), a, vector, beta=0)


def test_solve():
    check("aten.linalg_solve.default", many, tensor(2, 2, 3), left=False, tolerance=1e-8)
    factor = torch.linalg.cholesky(positive)
    triangular = "aten.linalg_solve_triangular.default"
    for named in ({}, {"unitriangular": True}):
        check(triangular, factor, tensor(2, 3, 2), upper=False, tolerance=1e-8, **named)
        check(triangular, factor[0].mT, tensor(2, 2, 3), upper=True, left=False, tolerance=1e-8, **named)
    check("aten.triangular_solve.default", tensor(2, 3, 2), factor, False, tolerance=1e-8)
    check("aten.triangular_solve.default", tensor(3, 2), factor[0], False, True, True, tolerance=1e-8)


@pytest.mark.parametrize("upper", [False, True])
def test_factors(upper):
    """Compare at a triangular factor: torch's derivative also reads the triangle that the value does not depend on."""
    cut = torch.triu if upper else torch.tril
    factor = torch.linalg.cholesky(positive, upper=upper)
    check("aten.linalg_cholesky.default", positive, upper=upper)
    by_solve = lambda b, factor, upper: torch.cholesky_solve(b, cut(factor), upper)
    check("aten.cholesky_solve.default", tensor(2, 3, 2), factor, upper, reference=by_solve, tolerance=1e-8)
    by_inverse = lambda factor, upper: torch.cholesky_inverse(cut(factor), upper)
    check("aten.cholesky_inverse.default", factor, upper, reference=by_inverse, tolerance=1e-8)


def check_use(name, use, *args):
    """Compare a function of the operation, where its results themselves differ in sign or are complex."""
    packet, overload = name.split(".")
    register("test.use.default")(lambda *args: use(TABLE[f"aten.{name}"].function, *args))
    try:
        theirs = lambda *args: use(getattr(getattr(torch.ops.aten, packet), overload), *args)
        check("test.use.default", *args, reference=theirs, tolerance=1e-8)
    finally:
        del TABLE["test.use.default"]


def test_singular_matrices():
    singular = torch.ones(3, 3, dtype=torch.float64)
    check("aten._linalg_det.default", singular, derivatives=1)
    check("aten.linalg_pinv.atol_rtol_tensor", torch.cat([a, a]), derivatives=0)
    number = lambda value: torch.tensor(value, dtype=torch.float64)
    singular_values = torch.diag(number([3.0, 1.0, 0.1]))
    for named in ({"atol": number(0.5)}, {"rtol": number(0.5)}, {"atol": number(0.05), "rtol": number(0.04)}):
        check("aten.linalg_pinv.atol_rtol_tensor", singular_values, derivatives=0, **named)
    symmetric = lambda pinv, a: pinv(a + a.mT, hermitian=True)
    check_use("linalg_pinv.atol_rtol_tensor", symmetric, many)


def test_eigenvalues():
    def use(eigh, a):
        values, vectors = eigh(a)
        return vectors @ (values[..., None] ** 2 * vectors.mT), values

    check_use("_linalg_eigh.default", use, positive)
    only_values = lambda a, uplo, compute_v: (torch.linalg.eigvalsh(a), None)
    check("aten._linalg_eigh.default", positive, "U", False, reference=only_values, tolerance=1e-8)


def test_singular_values():
    def use(svd, a):
        u, values, v = svd(a, False)
        return u @ (values[..., None] ** 2 * v), values

    def use_of_all(svd, a):
        u, values, v = svd(a, True)
        k = values.shape[-1]
        return u[..., :k] @ (values[..., None] ** 2 * v[..., :k, :]), values

    for matrix in (a, b, many):
        check_use("_linalg_svd.default", use, matrix)
        check_use("_linalg_svd.default", use_of_all, matrix)
    only_values = lambda a, full_matrices, compute_uv: (None, torch.linalg.svdvals(a), None)
    check("aten._linalg_svd.default", a, False, False, reference=only_values, tolerance=1e-8)


def test_qr_without_q():
    check_use("linalg_qr.default", lambda qr, a: qr(a)[1], b)
    check("aten.linalg_qr.default", b, "r", derivatives=0)
    check("aten.linalg_qr.default", b, "complete", derivatives=0)


def parts(z):
    return z.real, z.imag


@pytest.mark.parametrize("scale", [0, 1, 2])
def test_fourier(scale):
    check_use("_fft_r2c.default", lambda fft, a: parts(fft(a, [0, 1], scale, True)), a)
    check_use("_fft_r2c.default", lambda fft, a: parts(fft(a, [1], scale, False)), tensor(2, 5))
    check_use(
        "_fft_c2r.default",
        lambda fft, a, b: fft(a + 1j * b, [0, 1], scale, 6),
        square,
        square.mT.contiguous(),
    )
    check_use(
        "_fft_c2r.default",
        lambda fft, a, b: fft(a + 1j * b, [0, 1], scale, 7),
        square,
        square.mT.contiguous(),
    )
    check_use("_fft_c2c.default", lambda fft, a, b: parts(fft(a + 1j * b, [0], scale, True)), a, a + 1)
    check_use("_fft_c2c.default", lambda fft, a, b: parts(fft(a + 1j * b, [0], scale, False)), a, a + 1)
