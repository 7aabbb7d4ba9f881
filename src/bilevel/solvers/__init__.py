"""One algorithm a file, beside it the ingredients algorithms are made of."""

from bilevel.solvers import adjoints as adjoints
from bilevel.solvers.adjoints import Adjoint as Adjoint
from bilevel.solvers.aid import AIDState as AIDState, aid as aid
from bilevel.solvers.base import Info as Info, Solver as Solver, State as State
from bilevel.solvers.bda import bda as bda
from bilevel.solvers.darts import (
    DARTSState as DARTSState,
    darts as darts,
    darts_first_order as darts_first_order,
)
from bilevel.solvers.f2sa import F2SAState as F2SAState, f2sa as f2sa
from bilevel.solvers.f3sa import F3SAState as F3SAState, f3sa as f3sa
from bilevel.solvers.forward import RTHOState as RTHOState, forward_itd as forward_itd, rtho as rtho
from bilevel.solvers.hoag import HOAGState as HOAGState, hoag as hoag
from bilevel.solvers.iaptt import IAPTTState as IAPTTState, iaptt as iaptt
from bilevel.solvers.itd import ITDState as ITDState, itd as itd
from bilevel.solvers.maml import MAMLState as MAMLState, maml as maml
from bilevel.solvers.meha import MEHAState as MEHAState, meha as meha
from bilevel.solvers.near_optimal import F2BAState as F2BAState, f2ba as f2ba
from bilevel.solvers.s_tfbo import STFBOState as STFBOState, s_tfbo as s_tfbo
from bilevel.solvers.sama import SAMAState as SAMAState, sama as sama
from bilevel.solvers.soba import SOBAState as SOBAState, soba as soba
from bilevel.solvers.stocbio import StocBiOState as StocBiOState, stocbio as stocbio
from bilevel.solvers.tuning_free import TuningFreeState as TuningFreeState, tuning_free as tuning_free
