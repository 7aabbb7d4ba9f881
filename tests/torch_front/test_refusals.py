"""What an exported graph would silently get wrong is refused, or follows torch."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bilevel as bl

pytestmark = pytest.mark.usefixtures("as_users_see_it", "lines_of_users")
A = torch.ones(4, 3, dtype=torch.float64)


def build(loss, model=None, **options):
    x = torch.ones(2, dtype=torch.float64)
    model = nn.Linear(3, 3).double() if model is None else model
    return bl.torch.front(model, inner=loss, outer=loss, x=x, example=bl.Batch(inner=A, outer=A), **options)


def written_without_gradient(x, model, batch):
    h = model(batch)
    with torch.no_grad():
        h[:, 0].mul_(2)
    return h.sum() * x.sum()


def written_through_detach(x, model, batch):
    h = model(batch)
    h.detach().view(-1).mul_(2)
    return h.sum() * x.sum()


@pytest.mark.parametrize("loss", [written_without_gradient, written_through_detach])
def test_a_write_that_torch_hides_from_the_derivative(loss):
    with pytest.raises(bl.torch.ExportError, match=r"changes a tensor in place.*test_refusals\.py"):
        build(loss)


def test_writes_without_derivatives_stay_allowed():
    def loss(x, model, batch):
        h = model(batch)
        with torch.no_grad():
            mask = torch.zeros(3, dtype=torch.float64)
            mask[0] = 2.0
            fixed = h.clone()
            fixed.mul_(mask)
        other = torch.zeros(4, 3, dtype=torch.float64)
        other[:, 1] = h[:, 1] * 3
        return (h * fixed + other).sum() * x.sum()

    model, x = nn.Linear(3, 3).double(), torch.ones(2, dtype=torch.float64)
    front = build(loss, model)
    expected = torch.autograd.grad(loss(x, model, A), model.weight)[0]
    batch = bl.Batch(inner=jnp.asarray(A.numpy()))
    ours = jax.grad(lambda y: front.problem.g(jnp.ones(2), y, batch))(front.start["y0"])
    np.testing.assert_allclose(ours["weight"], expected.numpy(), rtol=1e-12)


def test_no_grad_inside_autocast():
    def loss(x, model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                fixed = model(batch)
            return (model(batch) * fixed).float().sum() * x.sum()

    with pytest.raises(bl.torch.ExportError, match=r"no_grad inside torch\.autocast.*test_refusals\.py"):
        build(loss)


def test_a_hook_on_a_tensor():
    def loss(x, model, batch):
        h = model(batch)
        h.register_hook(lambda g: g * 5)
        return h.sum() * x.sum()

    with pytest.raises(bl.torch.ExportError, match=r"registers a hook.*test_refusals\.py"):
        build(loss)


def test_a_variable_from_outside():
    outside = torch.ones(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(bl.torch.ExportError, match="uses the tensor 'outside' from outside"):
        build(lambda x, model, batch: model(batch).sum() * outside.sum())


def test_the_gradient_of_operations_that_save_their_results():
    def loss(x, model, batch):
        value = torch.tanh(model(batch)).sum() * x.sum()
        (g,) = torch.autograd.grad(value, [model.weight], create_graph=True)
        return value + g.square().sum()

    with pytest.raises(bl.torch.ExportError, match=r"torch\.func\.jvp"):
        build(loss)


def test_batch_norm_under_two_names():
    norm = nn.BatchNorm1d(3)
    model = nn.Sequential(norm, nn.Linear(3, 3), norm).double()
    loss = lambda x, model, batch: model(batch).square().sum() * x.sum()
    with pytest.raises(
        bl.torch.ExportError, match=r"two names and change, here '0\.running_mean' and '2\.running_mean'"
    ):
        build(loss, model)
    value = build(loss, model, inner_mode="eval")
    assert value.problem.g is not None


class Average(nn.Module):
    """A buffer that is assigned, and not written in place."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3).double()
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))

    def forward(self, a):
        h = self.lin(a)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


def test_a_buffer_that_is_assigned_is_updated():
    model = Average()
    front = build(lambda x, model, batch: model(batch).square().sum() * x.sum(), model)
    start = front.start
    batch = bl.Batch(inner=jnp.asarray(A.numpy()), state=start["model_state"])
    first = front.problem.g.evaluate(jnp.ones(2), start["y0"], batch)
    second = front.problem.g.evaluate(jnp.ones(2), start["y0"], replace(batch, state=first.state))
    assert not model.mean.any()
    model.train()
    for out in (first, second):
        value = model(A).square().sum() * 2
        np.testing.assert_allclose(out.loss, value.item(), rtol=1e-12)
        np.testing.assert_allclose(out.state["model.mean"], model.mean.numpy(), rtol=1e-12)


def result_of(y, x=None):
    return SimpleNamespace(y=y, x=x, model_state=None)


def test_load_refuses_results_of_other_models():
    loss = lambda x, model, batch: model(batch).square().sum() * x.sum()
    model = nn.Linear(3, 3).double()
    front, before = build(loss, model), model.weight.clone()
    y = front.start["y0"]
    for other, message in (
        ({"weight": y["weight"][:1], "bias": y["bias"]}, r"'weight' has shape \(1, 3\)"),
        ({"weight": jnp.stack([y["weight"]] * 2), "bias": y["bias"]}, "after meta-learning"),
        ({"bias": y["bias"] + 1, "else": y["bias"]}, "'else'"),
    ):
        with pytest.raises(ValueError, match=message):
            front.load(result_of(other))
    with pytest.raises(TypeError, match=r"load takes a result of bl\.run.*not NoneType"):
        front.load(None)
    assert torch.equal(model.weight, before)


def test_a_module_that_changed_after_the_front_was_built():
    loss = lambda x, model, batch: model(batch).square().sum() * x.sum()
    replaced, frozen, longer = (nn.Sequential(nn.Linear(3, 3)).double() for _ in range(3))
    fronts = [build(loss, each) for each in (replaced, frozen, longer)]
    replaced[0].weight = nn.Parameter(torch.zeros(3, 3, dtype=torch.float64))
    frozen[0].weight.requires_grad_(False)
    longer.append(nn.Linear(3, 3).double())
    for front in fronts:
        with pytest.raises(ValueError, match=r"call bl\.torch\.front again"):
            _ = front.start


def test_wrong_variables_and_losses():
    loss = lambda x, model, batch: model(batch).square().sum() * x.sum()
    front = build(loss)
    with pytest.raises(TypeError, match=r"pass \*\*front\.start"):
        front.problem.g(jnp.ones(2), front.start, bl.Batch(inner=jnp.ones((4, 3))))
    with pytest.raises(TypeError, match=r"inner must take \(x, model, batch\)"):
        bl.torch.front(nn.Linear(3, 3), inner=lambda a: a, outer=loss)
    weigher = nn.Linear(1, 1).double()
    weighted = lambda x, model, batch: model(batch).square().sum() * x(batch[:1, :1]).sum()
    front = bl.torch.front(nn.Linear(3, 3).double(), inner=weighted, outer=weighted, x=weigher)
    with pytest.raises(TypeError, match=r"pass front\.x0"):
        front.problem.g(jnp.ones(2), front.start["y0"], bl.Batch(inner=jnp.ones((4, 3))))


def test_a_key_is_needed_only_by_losses_that_draw():
    model, a = nn.Linear(3, 3).double(), jnp.asarray(A.numpy())
    plain = lambda x, model, batch: model(batch).square().sum() * x.sum()
    front = bl.torch.front(model, inner=plain, outer=plain)
    assert float(front.problem.g(jnp.ones(1), front.start["y0"], bl.Batch(inner=a))) > 0
    noisy = lambda x, model, batch: F.dropout(model(batch), 0.5).square().sum() * x.sum()
    front = bl.torch.front(model, inner=noisy, outer=noisy)
    with pytest.raises(ValueError, match="draws random numbers, but there is no key"):
        front.problem.g(jnp.ones(1), front.start["y0"], bl.Batch(inner=a))


def test_advise_refuses_a_state():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()
    loss = lambda x, model, batch: model(batch).square().sum() * x.sum()
    front = bl.torch.front(model, inner=loss, outer=loss)
    start = front.start
    batch = bl.Batch(inner=A, outer=A, key=jax.random.key(0), state=start["model_state"])
    with pytest.raises(ValueError, match="returns a new state of the model"):
        bl.advise(front.problem, jnp.ones(2), start["y0"], batch, trial=0)


def test_another_thread_is_not_disturbed_by_an_export():
    """While one thread exports, another uses torch.autograd.grad as always."""
    import threading

    results, go = [], threading.Event()

    def other():
        go.wait(10)
        a = torch.ones(2, requires_grad=True)
        results.append(torch.autograd.grad(a.square().sum(), a)[0])

    thread = threading.Thread(target=other)
    thread.start()

    def loss(x, model, batch):
        go.set()
        thread.join(10)
        return model(batch).sum() * x.sum()

    build(loss)
    assert torch.equal(results[0], torch.full((2,), 2.0))
