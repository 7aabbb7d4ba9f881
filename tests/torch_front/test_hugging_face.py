"""Models of transformers agree with torch's double backward; benchmarks/torch_architectures.py compares all."""

import pytest

pytest.importorskip("transformers")

import torch_architectures as survey

# Llama and T5 compute their norms in float32, also in a model of float64.
MOST = {"gpt2": 1e-10, "bert": 1e-10, "llama": 1e-5, "t5": 1e-5}


@pytest.mark.slow
@pytest.mark.parametrize("name", MOST)
def test_gradient_and_hessian_product_equal_those_of_torch(name):
    kind, class_name = survey.architectures(list(survey.KINDS))[name]
    model = survey.build(name, class_name)
    errors = survey.largest_errors(model, survey.inputs(kind, model))
    assert set(errors) == {"gradient", "Hessian product"}
    assert max(errors.values()) < MOST[name]
