"""Every solver by name, as `bl.solvers.aid`, and in `bl.solvers.kit` the tools for authors of solvers.

Each algorithm is one file of `algorithms`, which close relatives share. A name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from bilevel.namespaces import lazy_names

if TYPE_CHECKING:
    from bilevel.solvers import kit as kit
    from bilevel.solvers.algorithms.aid import aid as aid
    from bilevel.solvers.algorithms.bda import bda as bda
    from bilevel.solvers.algorithms.bome import bome as bome
    from bilevel.solvers.algorithms.darts import (
        darts as darts,
        darts_first_order as darts_first_order,
        sama as sama,
    )
    from bilevel.solvers.algorithms.double_momentum import mrbo as mrbo, sustain as sustain
    from bilevel.solvers.algorithms.f2ba import acc_f2ba as acc_f2ba, f2ba as f2ba
    from bilevel.solvers.algorithms.f2sa import f2sa as f2sa, f3sa as f3sa
    from bilevel.solvers.algorithms.f2sa_p import f2sa_p as f2sa_p
    from bilevel.solvers.algorithms.forward_mode import forward_itd as forward_itd, rtho as rtho
    from bilevel.solvers.algorithms.fsla import fsla as fsla
    from bilevel.solvers.algorithms.hoag import hoag as hoag
    from bilevel.solvers.algorithms.iaptt import iaptt as iaptt
    from bilevel.solvers.algorithms.imaml import imaml as imaml
    from bilevel.solvers.algorithms.itd import itd as itd
    from bilevel.solvers.algorithms.maml import fomaml as fomaml, maml as maml, reptile as reptile
    from bilevel.solvers.algorithms.meha import meha as meha
    from bilevel.solvers.algorithms.pbgd import g_pbgd as g_pbgd, v_pbgd as v_pbgd
    from bilevel.solvers.algorithms.pzobo import pzobo as pzobo
    from bilevel.solvers.algorithms.qnbo import qnbo as qnbo
    from bilevel.solvers.algorithms.saba import saba as saba
    from bilevel.solvers.algorithms.soba import soba as soba
    from bilevel.solvers.algorithms.srba import srba as srba
    from bilevel.solvers.algorithms.stocbio import stocbio as stocbio
    from bilevel.solvers.algorithms.tfbo import d_tfbo as d_tfbo, s_tfbo as s_tfbo
    from bilevel.solvers.algorithms.tuning_free import tuning_free as tuning_free
    from bilevel.solvers.algorithms.vrbo import vrbo as vrbo
else:
    _SHARED = {
        "darts": ("darts", "darts_first_order", "sama"), "double_momentum": ("mrbo", "sustain"),
        "f2ba": ("acc_f2ba", "f2ba"), "f2sa": ("f2sa", "f3sa"), "forward_mode": ("forward_itd", "rtho"),
        "maml": ("fomaml", "maml", "reptile"), "pbgd": ("g_pbgd", "v_pbgd"),
        "tfbo": ("d_tfbo", "s_tfbo"),
    }  # fmt: skip
    _SINGLE = (
        "aid", "bda", "bome", "f2sa_p", "fsla", "hoag", "iaptt", "imaml", "itd", "meha", "pzobo", "qnbo", "saba",
        "soba", "srba", "stocbio", "tuning_free", "vrbo",
    )  # fmt: skip
    _FILES = _SHARED | {name: (name,) for name in _SINGLE}
    _HOMES = {name: f"bilevel.solvers.algorithms.{file}" for file, names in _FILES.items() for name in names}
    __getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES, ["kit"])
