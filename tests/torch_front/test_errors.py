"""Every refusal is one line when the front is built, with the line of the user's code."""

import re
from pathlib import Path

import jax
import pytest
import torch
from torch import nn

import bilevel as bl
from bilevel.torch.errors import line_of_node

pytestmark = pytest.mark.usefixtures("as_users_see_it", "lines_of_users")


class Sign(torch.autograd.Function):
    """A backward pass that differs from the derivative."""

    @staticmethod
    def forward(ctx, a):
        return a.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3).double()


class Branch(Body):
    def forward(self, a):
        h = self.lin(a)
        return h * 2 if h.sum() > 0 else h  # here


class Number(Body):
    def forward(self, a):
        h = self.lin(a)
        return h * float(h.sum())  # here


class Loop(Body):
    def forward(self, a):
        h = self.lin(a)
        for _ in range(int(h.sum())):  # here
            h = h + 1
        return h


class Mask(Body):
    def forward(self, a):
        h = self.lin(a)
        return h[h > 0]  # here


class Nonzero(Body):
    def forward(self, a):
        h = self.lin(a)
        return h * h.nonzero().sum()  # here


class Numpy(Body):
    def forward(self, a):
        h = self.lin(a)
        return h + torch.tensor(h.detach().numpy())  # here


class OwnFunction(Body):
    def forward(self, a):
        return Sign.apply(self.lin(a))  # here


class Missing(Body):
    def forward(self, a):
        return torch.special.airy_ai(self.lin(a))  # here


class Gradient(Body):
    def forward(self, a):
        h = self.lin(a)
        return h + torch.autograd.grad(h.square().sum(), self.lin.weight)[0].sum()  # here


class WrongShape(Body):
    def forward(self, a):
        return self.lin(a) @ torch.ones(7, 7, dtype=torch.float64)  # here


CASES = {
    Branch: "torch.where",
    Number: "decides by the value of a tensor",
    Loop: "decides by the value of a tensor",
    Mask: "depends on the data: use torch.where instead of indexing by a mask",
    Nonzero: "depends on the data",
    Numpy: "NumPy",
    OwnFunction: "Sign is a torch.autograd.Function, whose own backward pass",
    Missing: 'aten.special_airy_ai.default.*bl.torch.register("aten.special_airy_ai.default")',
    Gradient: "create_graph=True",
    WrongShape: "refuses the inner loss",
}


def mean(x, model, batch):
    return model(batch).mean() * x.sum()


def build(model, loss=mean, **options):
    a = torch.ones(4, 3, dtype=torch.float64)
    x = torch.ones(2, dtype=torch.float64)
    return bl.torch.front(model, inner=loss, outer=loss, x=x, example=bl.Batch(inner=a, outer=a), **options)


@pytest.mark.parametrize("kind", CASES)
def test_a_module_that_cannot_be_exported(kind, capfd):
    with pytest.raises(bl.torch.ExportError) as caught:
        build(kind())
    message = str(caught.value).partition("\n-----")[0]
    assert re.search(CASES[kind].replace("(", r"\(").replace(")", r"\)"), message), message
    assert "\n" not in message
    source = Path(__file__).read_text().splitlines()
    line = int(re.search(rf"{re.escape(__file__)}:(\d+)", message)[1])
    assert source[line - 1].endswith("# here"), message
    assert capfd.readouterr().err == ""


def test_the_same_errors_come_from_a_run_without_an_example():
    front = bl.torch.front(Branch(), inner=mean, outer=mean)
    solver = bl.soba(front.problem, inner=0.1, adjoint=0.1, outer=0.1)
    a = torch.ones(4, 3, dtype=torch.float64)
    with pytest.raises(bl.torch.ExportError, match=r"torch\.where.*test_errors\.py"):
        bl.run(
            solver,
            torch.ones(2, dtype=torch.float64),
            **front.start,
            data=bl.Batch(inner=a, outer=a),
            steps=1,
        )


def test_an_error_of_the_user_s_code_stays_as_it_is():
    class Wrong(Body):
        def forward(self, a):
            return {}["missing"]

    with pytest.raises(KeyError, match="missing"):
        build(Wrong())


def test_a_parameter_used_from_outside():
    model = nn.Linear(3, 3).double()
    outside = lambda x, given, batch: model(batch).mean() * x.sum()
    with pytest.raises(bl.torch.ExportError, match=r"the parameter 'weight' .*from the argument `model`"):
        build(model, outside)


def test_a_frozen_teacher_from_outside_is_a_constant():
    teacher, model = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
    distill = lambda x, given, batch: (given(batch) - teacher(batch)).square().mean() * x.sum()
    front = build(model, distill)
    a = torch.ones(4, 3, dtype=torch.float64)
    value = front.problem.g(jax.numpy.ones(2), front.start["y0"], bl.Batch(inner=jax.numpy.ones((4, 3))))
    assert float(value) == pytest.approx(distill(torch.ones(2), model, a).item(), rel=1e-12)


def test_a_parameter_that_the_loss_changes():
    def writes(x, model, batch):
        with torch.no_grad():
            model.weight.mul_(0.5)
        return model(batch).mean() * x.sum()

    with pytest.raises(bl.torch.ExportError, match=r"changes a tensor in place under torch\.no_grad"):
        build(nn.Linear(3, 3).double(), writes)


def test_a_loss_that_returns_something_else():
    with pytest.raises(
        bl.torch.ExportError, match=r"must return a tensor, or \(tensor, metrics\).* returned float"
    ):
        build(nn.Linear(3, 3).double(), lambda x, model, batch: 1.0)


def test_a_float64_module_under_float32():
    with (
        jax.enable_x64(False),
        pytest.raises(TypeError, match=r"'weight' of the module is float64.*model\.float\(\)"),
    ):
        bl.torch.front(nn.Linear(3, 3).double(), inner=mean, outer=mean)


def test_modules_that_jax_cannot_hold():
    with pytest.raises(ValueError, match=r"'weight' of the module has no shape yet: call the module"):
        bl.torch.front(nn.LazyLinear(3), inner=mean, outer=mean)
    with pytest.raises(ValueError, match=r"has no values \(device meta\)"):
        bl.torch.front(nn.Linear(3, 3, device="meta"), inner=mean, outer=mean)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        bl.torch.front(nn.Linear(3, 3).requires_grad_(False), inner=mean, outer=mean)


def test_a_module_on_a_gpu_while_jax_is_on_the_cpu(monkeypatch):
    """No GPU is needed: only the device's name is read."""
    import bilevel.torch.state as state

    class OnGpu:
        layout, dtype, device = torch.strided, torch.float32, torch.device("cuda:0")

    monkeypatch.setattr(torch.nn.parameter, "is_lazy", lambda tensor: False)
    with pytest.raises(
        ValueError, match=r"'weight' of the module is on cuda:0, and JAX runs on the CPU: call model\.cpu\(\)"
    ):
        state.check_tensors({"weight": OnGpu()})


def test_wrong_arguments():
    model = nn.Linear(3, 3).double()
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, not dict"):
        bl.torch.front({}, inner=mean, outer=mean)
    with pytest.raises(TypeError, match="inner must be a function"):
        bl.torch.front(model, inner=3, outer=mean)
    with pytest.raises(ValueError, match="inner_mode must be"):
        bl.torch.front(model, inner=mean, outer=mean, inner_mode="training")
    with pytest.raises(AttributeError, match=r"front\(model, x=module"):
        _ = bl.torch.front(model, inner=mean, outer=mean).x0


def test_an_operation_can_be_registered():
    from bilevel.torch._table import TABLE

    model = Missing()
    try:
        bl.torch.register(torch.ops.aten.special_airy_ai.default)(lambda a: a * 3)
        front = build(model)
        value = front.problem.g(jax.numpy.ones(2), front.start["y0"], bl.Batch(inner=jax.numpy.ones((4, 3))))
        expected = 6 * model.lin(torch.ones(4, 3, dtype=torch.float64)).mean().item()
        assert float(value) == pytest.approx(expected, rel=1e-12)
    finally:
        TABLE.pop("aten.special_airy_ai.default")


def test_the_line_of_a_node_skips_torch_and_this_library():
    inside = f'File "{torch.__file__}", line 3, in forward\n    x\n'
    assert line_of_node(f'File "/home/me/net.py", line 7, in forward\n    return f(x)\n{inside}') == (
        ' (in /home/me/net.py:7: "return f(x)")'
    )
    assert line_of_node(inside) == ""
    assert line_of_node(None) == ""


def test_importing_the_front_changes_nothing_global():
    import subprocess
    import sys

    program = """
import torch, jax, warnings, logging
seen = lambda: (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), str(jax.config.values),
                torch.autograd.Function.apply.__func__, torch.autograd.grad, logging.root.manager.disable,
                list(warnings.filters),
                sorted(torch.ops.__dict__), torch.utils._python_dispatch._get_current_dispatch_mode())
before = seen()
import bilevel.torch
assert str(before) == str(seen()), (before, seen())
model = torch.nn.Linear(3, 3)
loss = lambda x, model, batch: model(batch).tanh().mean() * x.sum()
a = torch.ones(2, 3)
bilevel.torch.front(model, inner=loss, outer=loss, x=torch.ones(1), example=bilevel.Batch(inner=a, outer=a))
after = seen()
assert str(before[:7]) == str(after[:7]) and before[-1] == after[-1], (before, after)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
