"""Checks of arguments before anything is computed. Their errors name the value and the fix."""

from bilevel.callables import check_callable as check_callable, check_map as check_map, takes as takes
from bilevel.checks.data import (
    check_array as check_array,
    check_dtype as check_dtype,
    check_generator as check_generator,
    check_known as check_known,
    check_labels as check_labels,
    check_matrix as check_matrix,
    signature as signature,
    variables as variables,
)
from bilevel.checks.objectives import (
    check_batch as check_batch,
    prepare as prepare,
    prepare_inner as prepare_inner,
    returns_more as returns_more,
)
from bilevel.checks.values import (
    MANY as MANY,
    as_number as as_number,
    check_choice as check_choice,
    check_count as check_count,
    check_finite as check_finite,
    check_flag as check_flag,
    check_kind as check_kind,
    check_not_negative as check_not_negative,
    check_path as check_path,
    check_positive as check_positive,
    check_problem as check_problem,
    check_schedule as check_schedule,
    check_seed as check_seed,
    check_text as check_text,
    check_traced_seed as check_traced_seed,
)
