"""The front: parameters, buffers, modes, keys, batches, loading."""

import copy
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bilevel as bl
from bilevel.torch._front import Level


class Net(nn.Module):
    """Batch norm, dropout, a tied and a frozen parameter."""

    def __init__(self, p: float = 0.0):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(p)
        self.last = nn.Linear(4, 3)
        self.again = self.first
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, a):
        return self.scale * self.last(self.dropout(torch.tanh(self.norm(self.again(a)))))


def inner(x, model, batch):
    a, b, rows = batch
    losses = F.cross_entropy(model(a), b, reduction="none")
    return (torch.sigmoid(x[rows]) * losses).mean() + 0.01 * sum(p.square().sum() for p in model.parameters())


def outer(x, model, batch):
    a, b = batch
    scores = model(a)
    return F.cross_entropy(scores, b), {"accuracy": (scores.argmax(1) == b).double().mean()}


def rows(count: int = 20):
    torch.manual_seed(1)
    a = torch.randn(count, 3, dtype=torch.float64)
    return a, a.argmax(1), torch.arange(count)


def front_of(p: float = 0.0, **options):
    model = Net(p).double()
    return model, bl.torch.front(model, inner=inner, outer=outer, **options)


def loaders():
    a, b, numbers = rows()
    return bl.loaders(
        inner=DataLoader(TensorDataset(a, b, numbers), batch_size=8),
        outer=DataLoader(TensorDataset(a, b), batch_size=20),
    )


def solver_of(front):
    return bl.soba(front.problem, inner=0.1, adjoint=0.1, outer=0.1)


@pytest.fixture(scope="module")
def finished():
    model, front = front_of()
    before = copy.deepcopy(model.state_dict())
    result = bl.run(
        solver_of(front), torch.zeros(20, dtype=torch.float64), **front.start, data=loaders(), steps=6
    )
    return model, front, before, result.check()


def test_y_has_trainable_parameters_once_and_the_state_has_the_rest(finished):
    _, front, _, _ = finished
    start = front.start
    assert set(start["y0"]) == {
        "first.weight",
        "first.bias",
        "norm.weight",
        "norm.bias",
        "last.weight",
        "last.bias",
    }
    tensors = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "scale"}
    assert set(start["model_state"]) == {f"model.{name}" for name in tensors}


def test_a_run_with_loaders_moves_parameters_and_statistics(finished):
    _, front, _, result = finished
    assert result.status.code is bl.Code.COMPLETED
    assert int(result.model_state["model.norm.num_batches_tracked"]) == 6
    assert float(result.model_state["model.scale"]) == 2.0
    assert not np.allclose(result.y["last.weight"], front.start["y0"]["last.weight"])
    assert result.trace["outer/accuracy"].shape == (6,)


def test_the_module_changes_only_by_load(finished):
    model, front, before, result = finished
    model.eval()
    model.last.train()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    front.load(result)
    assert [part.training for part in (model, model.first, model.last)] == [False, False, True]
    for name, array in result.y.items():
        np.testing.assert_array_equal(model.state_dict()[name].numpy(), array)
    assert model.norm.num_batches_tracked == 6
    assert model.again is model.first
    a, b, _ = rows()
    ours = front.problem.f(
        result.x,
        result.y,
        bl.Batch(outer=tuple(map(jnp.asarray, (a.numpy(), b.numpy()))), state=result.model_state),
    )
    np.testing.assert_allclose(ours, outer(None, model.eval(), (a, b))[0].item(), rtol=1e-12)
    model.load_state_dict(before)


def test_the_values_returned_share_no_memory_with_the_module():
    model, front = front_of()
    start = front.start
    with torch.no_grad():
        model.last.weight.add_(1)
    assert not np.allclose(start["y0"]["last.weight"], front.start["y0"]["last.weight"])


def test_modes():
    a, b, numbers = (jnp.asarray(each.numpy()) for each in rows())
    model, front = front_of(0.5, inner_mode="eval")
    start = front.start
    batch = bl.Batch(inner=(a, b, numbers), key=jax.random.key(0), state=start["model_state"])
    _, _, state = front.problem.g.evaluate(jnp.zeros(20), start["y0"], batch)
    assert int(state["model.norm.num_batches_tracked"]) == 0
    model.dropout.train()
    model.norm.eval()
    _, as_is = front_of(0.5, inner_mode=None)
    _ = as_is
    mixed = bl.torch.front(model, inner=inner, outer=outer, inner_mode=None)
    one, other = (
        mixed.problem.g.evaluate(
            jnp.zeros(20),
            start["y0"],
            bl.Batch(inner=(a, b, numbers), key=jax.random.key(k), state=start["model_state"]),
        )
        for k in (0, 1)
    )
    assert one.loss != other.loss
    assert int(one.state["model.norm.num_batches_tracked"]) == 0


def test_dropout_follows_the_key_of_the_step():
    a, b, numbers = (jnp.asarray(each.numpy()) for each in rows())
    _, front = front_of(0.5)
    start = front.start

    def loss(k):
        batch = bl.Batch(inner=(a, b, numbers), key=jax.random.key(k), state=start["model_state"])
        return front.problem.g(jnp.zeros(20), start["y0"], batch)

    assert loss(0) == loss(0)
    assert loss(0) != loss(1)


def test_a_run_with_dropout_resumes_bit_for_bit(tmp_path):
    _, front = front_of(0.3)
    a, b, numbers = rows()
    data = bl.epochs(bl.Batch(inner=(a, b, numbers), outer=(a, b)), size=bl.Levels(inner=8, outer=None))
    run = lambda steps, **how: bl.run(solver_of(front), data=data, steps=steps, **how)
    start = {"x0": torch.zeros(20, dtype=torch.float64), **front.start}
    whole = run(7, **start)
    part = run(3, **start, checkpoint=tmp_path)
    joined = run(4, resume=part)
    from_disk = run(4, resume=tmp_path)
    _, fresh = front_of(0.3)
    of_other_front = bl.run(solver_of(fresh), data=data, steps=4, resume=tmp_path)
    for other in (joined, from_disk, of_other_front):
        same = jax.tree.map(
            np.array_equal, (whole.x, whole.y, whole.model_state), (other.x, other.y, other.model_state)
        )
        assert all(jax.tree.leaves(same))


@pytest.mark.parametrize("kind", ["tensor", "dict", "module"])
def test_x_of_every_kind(kind):
    torch.manual_seed(3)
    weigher = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    read = {
        "tensor": lambda x, losses: torch.sigmoid(x).sum() * losses,
        "dict": lambda x, losses: torch.sigmoid(x["a"]["b"]).sum() * losses,
        "module": lambda x, losses: torch.sigmoid(x(losses.detach()[:, None]))[:, 0] * losses,
    }[kind]

    def weighted(x, model, batch):
        return read(x, F.cross_entropy(model(batch[0]), batch[1], reduction="none")).mean()

    model = Net().double()
    front = bl.torch.front(model, inner=weighted, outer=outer, **({"x": weigher} if kind == "module" else {}))
    value = torch.ones(2, dtype=torch.float64)
    x0 = {"tensor": value, "dict": {"a": {"b": value}}, "module": None}[kind]
    x0 = front.x0 if kind == "module" else x0
    a, b, _ = rows()
    before = copy.deepcopy(weigher.state_dict())
    result = bl.run(
        solver_of(front), x0, **front.start, data=bl.Batch(inner=(a, b), outer=(a, b)), steps=3
    ).check()
    moved = jax.tree.map(
        lambda new, old: not np.array_equal(new, old), result.x, jax.tree.map(np.asarray, x0)
    )
    assert all(jax.tree.leaves(moved))
    if kind == "module":
        assert all(torch.equal(weigher.state_dict()[name], before[name]) for name in before)
        front.load(result)
        np.testing.assert_array_equal(weigher[0].weight.detach().numpy(), result.x["0.weight"])


def test_x_as_the_initialization():
    torch.manual_seed(4)
    model = nn.Linear(3, 1).double()

    def square(x, model, batch):
        return (model(batch[0])[:, 0] - batch[1]).square().mean()

    tasks, examples = 3, 6
    a = torch.randn(tasks, examples, 3, dtype=torch.float64)
    batch = bl.Batch(inner=(a, a[..., 0]), outer=(a, a[..., 1]))
    front = bl.torch.front(model, inner=square, outer=square)
    y0 = front.start["y0"]
    for make, options in ((bl.maml, {}), (bl.solvers.reptile, {}), (bl.imaml, {"proximal_weight": 1.0})):
        solver = make(front.problem, inner=0.1, outer=0.1, **options)
        result = bl.run(solver, y0, y0, data=batch, steps=2).check()
        assert not np.array_equal(result.x["weight"], y0["weight"])


def test_mappings_from_a_loader_reach_the_loss_as_dicts():
    from collections import UserDict

    a, b, _ = rows(8)
    model = nn.Linear(3, 3).double()

    def loss(x, model, batch):
        return F.cross_entropy(model(batch["inputs"]["a"]), batch["labels"]) * x.sum()

    front = bl.torch.front(model, inner=loss, outer=loss)
    encoding = UserDict(inputs=UserDict(a=a), labels=b)
    result = bl.run(
        solver_of(front),
        jnp.ones(1),
        **front.start,
        data=bl.loaders(inner=[encoding], outer=[encoding]),
        steps=2,
    )
    assert result.check().steps == 2


def test_losses_see_values_that_changed():
    """A global or a tensor that a loss reads may change between runs."""
    settings, target = SimpleNamespace(factor=1.0), torch.ones(3, dtype=torch.float64)
    model = nn.Linear(3, 3).double()

    def loss(x, model, batch):
        return settings.factor * (model(batch) - target).square().mean() + 0 * x.sum()

    front = bl.torch.front(model, inner=loss, outer=loss)
    y0 = front.start["y0"]
    value = lambda: float(front.problem.g(jnp.ones(1), y0, bl.Batch(inner=jnp.ones((2, 3)))))
    first = value()
    settings.factor = 3.0
    assert value() == pytest.approx(3 * first, rel=1e-12)
    settings.factor = 1.0
    target.add_(1.0)
    expected = (model(torch.ones(2, 3, dtype=torch.float64)) - target).square().mean().item()
    assert value() == pytest.approx(expected, rel=1e-12)


def test_an_example_shows_which_keywords_are_needed():
    a, b, numbers = rows()
    example = bl.Batch(inner=(a, b, numbers), outer=(a, b))
    _, plain = front_of(example=example, x=torch.zeros(20, dtype=torch.float64))
    assert plain.problem.wants == {"state"}
    _, random = front_of(0.5, example=example, x=torch.zeros(20, dtype=torch.float64))
    assert (random.problem.g.extras, random.problem.f.extras) == ({"key", "state"}, {"state"})
    linear = nn.Linear(3, 3).double()
    loss = lambda x, model, batch: model(batch).square().mean() * x.sum()
    front = bl.torch.front(
        linear, inner=loss, outer=loss, x=torch.ones(1), example=bl.Batch(inner=a, outer=a)
    )
    assert front.problem.wants == frozenset()
    assert front.start["model_state"] is None


def test_no_gradient_passes_detach_and_no_grad():
    model = nn.Linear(3, 3).double()

    def loss(x, model, batch):
        h = model(batch)
        with torch.no_grad():
            fixed = h.softmax(1)
            with torch.enable_grad():
                moving = (h * x.sum()).tanh()
        return (h.detach() * h * fixed + moving * x.exp().sum().detach()).sum()

    front = bl.torch.front(model, inner=loss, outer=loss)
    a, x = rows(5)[0], torch.ones(2, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(loss(x, model, a), (x, model.weight))
    batch = bl.Batch(inner=jnp.asarray(a.numpy()))
    ours = jax.grad(lambda x, y: front.problem.g(x, y, batch), (0, 1))(jnp.ones(2), front.start["y0"])
    np.testing.assert_allclose(ours[0], expected[0].numpy(), rtol=1e-12)
    np.testing.assert_allclose(ours[1]["weight"], expected[1].numpy(), rtol=1e-12)


def test_a_front_exports_each_shape_once(monkeypatch):
    import bilevel.torch._front as module

    calls = []
    export = module.export
    monkeypatch.setattr(module, "export", lambda *args: calls.append(args[2]) or export(*args))
    _, front = front_of()
    x0 = torch.zeros(20, dtype=torch.float64)
    for _ in range(2):
        bl.run(solver_of(front), x0, **front.start, data=loaders(), steps=4)
    assert calls.count("inner") == 2  # batches of 8 and of 4 rows
    assert calls.count("outer") == 1


def test_a_level_describes_itself_alike_in_every_process():
    texts = [
        str(Level("inner", inner, front._model, None, "train").about) for _, front in (front_of(), front_of())
    ]
    assert texts[0] == texts[1]
    assert str(Level("inner", inner, front_of(0.5)[1]._model, None, "train").about) != texts[0]


def test_optax_rules_sweeps_and_more_inner_steps():
    _, front = front_of()
    a, b, numbers = rows()
    data = bl.Batch(inner=(a, b, numbers), outer=(a, b))
    x0 = torch.zeros(20, dtype=torch.float64)
    make = lambda rate: bl.itd(front.problem, inner=optax.sgd(rate, momentum=0.9), outer=0.1, inner_steps=2)
    swept = bl.sweep([make(1e-1), make(1e-2)], x0, **front.start, data=data, steps=3)
    for k, rate in enumerate((1e-1, 1e-2)):
        single = bl.run(make(rate), x0, **front.start, data=data, steps=3).check()
        np.testing.assert_allclose(swept[k].x, single.x, rtol=1e-10)
        assert int(single.model_state["model.norm.num_batches_tracked"]) == 6
