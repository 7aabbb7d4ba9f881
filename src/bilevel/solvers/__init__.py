"""Every solver by name, as `bl.solvers.aid`, and in `bl.solvers.kit` the tools for authors of solvers.

Each algorithm is one file of `algorithms`. A name is loaded when it is first used.
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
    from bilevel.solvers.algorithms.f2sa import f2sa as f2sa
    from bilevel.solvers.algorithms.f2sa_p import f2sa_p as f2sa_p
    from bilevel.solvers.algorithms.f3sa import f3sa as f3sa
    from bilevel.solvers.algorithms.first_order_maml import fomaml as fomaml, reptile as reptile
    from bilevel.solvers.algorithms.forward_mode import forward_itd as forward_itd, rtho as rtho
    from bilevel.solvers.algorithms.fsla import fsla as fsla
    from bilevel.solvers.algorithms.hoag import hoag as hoag
    from bilevel.solvers.algorithms.iaptt import iaptt as iaptt
    from bilevel.solvers.algorithms.imaml import imaml as imaml
    from bilevel.solvers.algorithms.itd import itd as itd
    from bilevel.solvers.algorithms.maml import maml as maml
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
    _FILES = {
        "acc_f2ba": "f2ba", "d_tfbo": "tfbo", "darts_first_order": "darts", "fomaml": "first_order_maml",
        "forward_itd": "forward_mode", "g_pbgd": "pbgd", "mrbo": "double_momentum", "reptile": "first_order_maml",
        "rtho": "forward_mode", "s_tfbo": "tfbo", "sama": "darts", "sustain": "double_momentum", "v_pbgd": "pbgd",
    }  # fmt: skip  # others have their own name
    _NAMES = (
        "acc_f2ba", "aid", "bda", "bome", "d_tfbo", "darts", "darts_first_order", "f2ba", "f2sa", "f2sa_p",
        "f3sa", "fomaml", "forward_itd", "fsla", "g_pbgd", "hoag", "iaptt", "imaml", "itd", "maml", "meha",
        "mrbo", "pzobo", "qnbo", "reptile", "rtho", "s_tfbo", "saba", "sama", "soba", "srba", "stocbio",
        "sustain", "tuning_free", "v_pbgd", "vrbo",
    )  # fmt: skip
    _HOMES = {name: f"bilevel.solvers.algorithms.{_FILES.get(name, name)}" for name in _NAMES}
    __getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES, ["kit"])
