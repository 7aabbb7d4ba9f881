"""Constants, certificates, verification and estimation."""

from functools import cache

import jax

import bilevel as bl
from fuzz.call import Call, Later
from fuzz.valid import CONSTANTS, DATA, NOISE, PROBLEM, QUADRATIC, SOLVER, X0, Y0

t = bl.theory
paper_aid, paper_itd = t.aid(CONSTANTS), t.itd(CONSTANTS)
steps = {"alpha": "reals or none", "eta": "reals or none"}
blocks = {"mu": 0.5, "L_yy": 1.0, "L_xy": 1.0, "f_xx": 1.0, "f_xy": 1.0, "f_yy": 1.0, "M_y": 1.0}
at = {"steps": "reals", "gap": "reals", "y_error": "reals"}
bounding = at | {"v_error": "reals or none", "beta": "reals or none"}


@cache
def measured() -> t.Run:
    return t.measure(SOLVER, X0, Y0, 2)


def verify(**arguments):
    with jax.enable_x64(True):
        return t.verify(**arguments)


def certificate(name: str, made: t.Certificate, costly: bool = False) -> list[Call]:
    given = {"steps": 100, "gap": 1.0}
    return [
        Call(f"{name}.bound", made.bound, given, bounding, costly=costly),
        Call(
            f"{name}.bound_from",
            made.bound_from,
            given | {"errors": (0.0, 0.0)},
            {"steps": "reals", "gap": "reals", "errors": "refused", "beta": "reals or none"},
            costly=costly,
        ),
        Call(
            f"{name}.best_beta",
            made.best_beta,
            given,
            at | {"v_error": "reals or none", "slack": "reals"},
            costly=costly,
        ),
        Call(
            f"{name}.best_beta_from",
            made.best_beta_from,
            given | {"errors": (0.0, 0.0)},
            {"steps": "reals", "gap": "reals", "errors": "refused", "slack": "reals"},
            costly=costly,
        ),
        Call(
            f"{name}.errors",
            made.errors,
            {"y_error": 0.1, "v_error": 0.1},
            {"y_error": "reals", "v_error": "reals or none"},
            also={"y_error": ("inf",), "v_error": ("inf",)},
        ),
        Call(f"{name}.step_sizes", made.step_sizes, given, at | {"v_error": "reals or none"}, costly=costly),
    ]


def at_beta(name: str, made: t.Certificate) -> Call:
    given = {"steps": 100, "gap": 1.0, "errors": (0.0, 0.0)}
    return Call(
        f"{name}.at_beta", made.at_beta, given, {"steps": "reals", "gap": "reals", "errors": "refused"}
    )


CALLS = [
    Call(
        "bl.theory.Constants",
        t.Constants,
        {"mu": 0.5, "L": 1.0, "M": 1.0, "rho": 0.1},
        dict.fromkeys(("mu", "L", "M", "rho"), "reals"),
    ),
    Call("bl.theory.Constants.of", t.Constants.of, {"constants": CONSTANTS}, {"constants": "constants"}),
    Call(
        "bl.theory.Blocks",
        t.Blocks,
        blocks,
        dict.fromkeys([*blocks, "rho_xxy", "rho_xyy", "rho_yyy"], "reals"),
    ),
    Call("bl.theory.Blocks.of", t.Blocks.of, {"constants": CONSTANTS}, {"constants": "constants or blocks"}),
    Call(
        "bl.theory.Noise",
        t.Noise,
        {"inner": 0.1, "adjoint": 0.1, "outer": 0.1},
        dict.fromkeys(("inner", "adjoint", "outer", "hessian", "cross"), "real"),
    ),
    Call(
        "bl.theory.Noise.of_batches",
        NOISE.of_batches,
        {"rows": 2},
        {"rows": "large count", "outer_rows": "large count"},
        also={"outer_rows": ("none",)},
    ),
    Call("bl.theory.aid", t.aid, {"constants": CONSTANTS}, {"constants": "constants", "c": "reals"}),
    Call(
        "bl.theory.itd",
        t.itd,
        {"constants": CONSTANTS},
        {"constants": "constants", "R_y": "reals or none", "c": "reals"},
    ),
    Call(
        "bl.theory.radius_beta",
        t.radius_beta,
        {"constants": CONSTANTS, "R_y": 1.0},
        {"constants": "constants", "R_y": "reals", "alpha": "reals or none"},
    ),
    Call(
        "bl.theory.lower_bound",
        t.lower_bound,
        {"constants": CONSTANTS},
        {"constants": "constants", "alpha": "reals or none"},
    ),
    Call(
        "bl.theory.LowerBound.instance",
        lambda constants: t.lower_bound(constants).instance(),
        {"constants": CONSTANTS},
        {"constants": "constants"},
    ),
    Call(
        "bl.theory.LowerBound.strict_instance",
        lambda constants: t.lower_bound(constants).strict_instance(),
        {"constants": QUADRATIC},
        {"constants": "constants"},
    ),
    Call(
        "bl.theory.analyses",
        t.analyses,
        {"constants": CONSTANTS},
        {"constants": "constants or blocks", "method": "choice"},
    ),
    Call(
        "bl.theory.cheapest",
        t.cheapest,
        {"constants": CONSTANTS, "eps": 0.1, "gap": 1.0, "most": 2},
        {
            "constants": "constants or blocks",
            "eps": "real",
            "gap": "real",
            "y_error": "real",
            "v_error": "real",
            "most": "large count",
        },
        also={"v_error": ("none",), "most": ("none",)},
        costly=True,
    ),
    Call(
        "bl.theory.two_sequence_contraction",
        t.two_sequence_contraction,
        {"constants": CONSTANTS},
        {"constants": "constants"} | steps,
    ),
    Call(
        "bl.theory.TwoSequenceContraction.worst_case",
        t.two_sequence_contraction(CONSTANTS).worst_case,
        {"beta": 1e-3, "a0": 1.0, "b0": 1.0, "steps": 3},
        {"beta": "real", "a0": "real", "b0": "real", "steps": "count"},
        also={"steps": ("double scalar",)},
    ),
    Call("bl.theory.AIDCertificate.E0_bound", paper_aid.E0_bound, {}, {"c_y": "reals"}),
    Call(
        "bl.theory.AIDCertificate.warmup_steps",
        paper_aid.warmup_steps,
        {"D_y": 1.0},
        {"D_y": "reals", "c_y": "reals"},
    ),
    Call(
        "bl.theory.AIDCertificate.complexity",
        paper_aid.complexity,
        {"eps": 0.1, "gap": 1.0},
        {"eps": "reals", "gap": "reals", "D_y": "reals", "c_y": "reals"},
    ),
    Call("bl.theory.ITDCertificate.warmup_steps", paper_itd.warmup_steps, {"D_y": 1.0}, {"D_y": "reals"}),
    Call("bl.theory.ITDCertificate.B1", paper_itd.B1, {"a0": 1.0}, {"a0": "reals"}),
    at_beta("bl.theory.AIDCertificate", paper_aid),
    at_beta("bl.theory.ITDCertificate", paper_itd),
    at_beta("bl.theory.prior.PriorAID", t.prior.aid(CONSTANTS)),
    *certificate("bl.theory.AIDCertificate", paper_aid),
    *certificate("bl.theory.ITDCertificate", paper_itd),
    *certificate("bl.theory.star.StarCertificate", t.star.aid(CONSTANTS), costly=True),
    *certificate("bl.theory.momentum.MomentumCertificate", t.momentum.aid(QUADRATIC), costly=True),
    *certificate("bl.theory.prior.PriorAID", t.prior.aid(CONSTANTS)),
    *certificate("bl.theory.tight.SystemCertificate", t.tight.itd(CONSTANTS)),
    Call(
        "bl.theory.star.StarCertificate.linear_beta",
        t.star.aid(CONSTANTS).linear_beta,
        {"modulus": 0.1},
        {"modulus": "reals"},
    ),
    Call(
        "bl.theory.star.StarCertificate.last_value",
        t.star.aid(CONSTANTS).last_value,
        {"steps": 100, "gap": 1.0, "modulus": 0.1},
        {
            "steps": "reals",
            "gap": "reals",
            "modulus": "reals",
            "y_error": "reals",
            "v_error": "reals or none",
            "beta": "reals or none",
        },
    ),
    Call(
        "bl.theory.prior.aid", t.prior.aid, {"constants": CONSTANTS}, {"constants": "constants", "c": "reals"}
    ),
    Call(
        "bl.theory.prior.itd",
        t.prior.itd,
        {"constants": CONSTANTS},
        {"constants": "constants", "R_y": "reals or none", "c": "reals"},
    ),
    Call("bl.theory.sharp.aid", t.sharp.aid, {"constants": CONSTANTS}, {"constants": "constants"}),
    Call(
        "bl.theory.sharp.itd",
        t.sharp.itd,
        {"constants": CONSTANTS},
        {"constants": "constants", "R_y": "reals or none"},
    ),
    Call("bl.theory.tight.aid", t.tight.aid, {"constants": CONSTANTS}, {"constants": "constants"}),
    Call("bl.theory.tight.itd", t.tight.itd, {"constants": CONSTANTS}, {"constants": "constants"}),
    Call(
        "bl.theory.star.aid",
        t.star.aid,
        {"constants": CONSTANTS},
        {"constants": "constants or blocks", "inner_steps": "large count", "adjoint_steps": "large count"}
        | steps,
    ),
    Call(
        "bl.theory.star.soba",
        t.star.soba,
        {"constants": CONSTANTS},
        {"constants": "constants or blocks"} | steps,
    ),
    Call(
        "bl.theory.star.itd",
        t.star.itd,
        {"constants": CONSTANTS},
        {"constants": "constants or blocks", "alpha": "reals or none"},
    ),
    Call(
        "bl.theory.momentum.aid",
        t.momentum.aid,
        {"constants": QUADRATIC},
        {"constants": "constants or blocks", "m": "reals or none"} | steps,
    ),
    Call(
        "bl.theory.momentum.heavy_ball",
        t.momentum.heavy_ball,
        {"constants": QUADRATIC},
        {"constants": "constants or blocks", "m": "reals or none"} | steps,
    ),
    Call(
        "bl.theory.limit.aid",
        t.limit.aid,
        {"constants": CONSTANTS},
        {"constants": "constants or blocks"} | steps,
    ),
    Call(
        "bl.theory.limit.soba",
        t.limit.soba,
        {"constants": CONSTANTS},
        {"constants": "constants or blocks"} | steps,
    ),
    Call(
        "bl.theory.limit.StepLimit.instance",
        t.limit.aid(CONSTANTS).instance,
        {},
        {"beta": "real", "radius": "real"},
        also={"beta": ("none",)},
    ),
    Call(
        "bl.theory.limit.StepLimit.rate",
        t.limit.aid(CONSTANTS).rate,
        {"steps": 100, "gap": 1.0},
        {"steps": "reals", "gap": "reals"},
    ),
    Call(
        "bl.theory.limit.StepLimit.slope_instance",
        t.limit.aid(CONSTANTS).slope_instance,
        {"steps": 100, "gap": 1.0, "beta": 0.1},
        {"steps": "real", "gap": "real", "beta": "real"},
    ),
    Call(
        "bl.theory.limit.first_unstable_beta",
        t.limit.first_unstable_beta,
        {
            "hessian": t.limit.Hessian(1.0, 1.0, 1.0),
            "coupling": 1.0,
            "curvature": 1.0,
            "alpha": 0.5,
            "eta": 0.5,
        },
        {
            "hessian": "refused",
            "coupling": "reals",
            "curvature": "reals",
            "alpha": "reals",
            "eta": "reals",
            "method": "choice",
        },
    ),
    Call(
        "bl.theory.recursions.decoupled",
        t.recursions.decoupled,
        {"r": 0.5, "perturbations": [1.0, 0.5]},
        {"r": "real", "perturbations": "reals", "e0": "real"},
    ),
    Call(
        "bl.theory.recursions.direct",
        t.recursions.direct,
        {"r": 0.5, "perturbations": [1.0, 0.5]},
        {"r": "real", "perturbations": "reals", "e0": "real", "theta": "real"},
        also={"theta": ("none",)},
    ),
    Call("bl.theory.recursions.best_theta", t.recursions.best_theta, {"r": 0.5}, {"r": "reals"}),
    Call("bl.theory.recursions.decoupled_gain", t.recursions.decoupled_gain, {"r": 0.5}, {"r": "reals"}),
    Call(
        "bl.theory.recursions.direct_gain",
        t.recursions.direct_gain,
        {"r": 0.5},
        {"r": "reals", "theta": "reals or none"},
    ),
    Call(
        "bl.theory.recursions.impulse_energy",
        t.recursions.impulse_energy,
        {"r": 0.5},
        {"r": "reals", "theta": "reals or none"},
    ),
    Call(
        "bl.theory.recursions.largest_adjoint_step",
        t.recursions.largest_adjoint_step,
        {"constants": CONSTANTS},
        {"constants": "constants", "weight": "reals"},
    ),
    Call(
        "bl.theory.recursions.weighted_squares",
        t.recursions.weighted_squares,
        {"constants": CONSTANTS},
        {"constants": "constants"},
    ),
    Call(
        "bl.theory.stochastic.aid",
        t.stochastic.aid,
        {"constants": CONSTANTS, "noise": NOISE},
        {"constants": "constants or blocks", "noise": "noise", "v_bend": "real"},
        also={"v_bend": ("none",)},
    ),
    Call(
        "bl.theory.stochastic.soba",
        t.stochastic.soba,
        {"constants": CONSTANTS, "noise": NOISE},
        {"constants": "constants or blocks", "noise": "noise", "v_bend": "real", "batches": "choice"},
        also={"v_bend": ("none",)},
    ),
    Call(
        "bl.theory.stochastic.check",
        t.stochastic.check,
        {"solver": bl.soba(PROBLEM, inner=0.1, adjoint=0.1, outer=0.1)},
        {"solver": "refused", "data": "data"},
    ),
    Call(
        "bl.theory.stochastic.measure_noise",
        t.stochastic.measure_noise,
        {"problem": PROBLEM, "x": X0, "y": Y0, "data": Later(lambda: bl.iid(DATA, 2)), "draws": 2},
        {"problem": "problem", "x": "tree", "y": "tree", "data": "data", "draws": "count"},
        costly=True,
    ),
    Call(
        "bl.theory.verify",
        verify,
        {
            "solver": SOLVER,
            "constants": CONSTANTS,
            "x0": X0.astype(float),
            "y0": Y0.astype(float),
            "steps": 1,
        },
        {
            "solver": "solver",
            "constants": "constants or blocks",
            "x0": "start",
            "y0": "start",
            "steps": "count",
            "data": "batch",
            "solution": "function or none",
        },
        costly=True,
        also={"x0": ("doubles",), "y0": ("doubles",)},
    ),
    Call(
        "bl.theory.measure",
        t.measure,
        {"solver": SOLVER, "x0": X0, "y0": Y0, "steps": 2},
        {
            "solver": "solver",
            "x0": "tree",
            "y0": "tree",
            "steps": "count",
            "data": "batch",
            "solution": "function or none",
        },
        costly=True,
    ),
    Call(
        "bl.theory.judge",
        t.judge,
        {"run": Later(measured), "solver": SOLVER, "constants": CONSTANTS},
        {"run": "refused", "solver": "solver", "constants": "constants or blocks", "hypotheses": "refused"},
        also={"hypotheses": ("none", "empty dict", "mixed keys")},
    ),
    Call(
        "bl.theory.exact",
        t.exact,
        {"problem": PROBLEM, "x": X0, "guess": Y0},
        {"problem": "problem", "x": "tree", "guess": "tree", "data": "batch", "solution": "function or none"},
        costly=True,
    ),
    Call(
        "bl.theory.estimate",
        t.estimate,
        {"problem": PROBLEM, "x": X0, "y": Y0, "iterations": 2},
        {
            "problem": "problem",
            "x": "start",
            "y": "start",
            "data": "batch",
            "points": "points",
            "iterations": "count",
            "seed": "seed",
        },
        costly=True,
    ),
    Call(
        "bl.advise",
        bl.advise,
        {"problem": PROBLEM, "x0": X0, "y0": Y0, "steps": 10, "warmup": 1, "trial": 0, "iterations": 2},
        {
            "problem": "problem",
            "x0": "start",
            "y0": "start",
            "data": "batch",
            "steps": "count",
            "infimum": "real",
            "warmup": "count from zero",
            "trial": "count from zero",
            "iterations": "count",
            "seed": "seed",
            "project": "function or none",
        },
        costly=True,
    ),
]
