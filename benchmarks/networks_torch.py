"""Four networks as torch modules, and data reweighting with each of them; networks_jax.py has the same in JAX.

All are smooth, so that float32 gives the same iterates everywhere: one rectifier on the other side of zero moves them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import bilevel as bl


class MLP(nn.Sequential):
    """Three layers with batch norm."""

    def __init__(self, inputs: int, width: int, classes: int):
        super().__init__(
            nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.SiLU(),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.SiLU(),
            nn.Linear(width, classes),
        )  # fmt: skip


class CNN(nn.Sequential):
    """Three convolutions with batch norm and pooling, and the mean over places."""

    def __init__(self, channels: int, width: int, classes: int):
        layers: list[nn.Module] = []
        for inputs, outputs in ((channels, width), (width, 2 * width), (2 * width, 4 * width)):
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.SiLU(), nn.AvgPool2d(2)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


class Block(nn.Module):
    """Block of GPT-2."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        n, time, width = h.shape
        split = lambda part: part.view(n, time, self.heads, width // self.heads).transpose(1, 2)
        q, k, v = (split(part) for part in self.mix(self.norm1(h)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(mixed.transpose(1, 2).reshape(n, time, width))
        return h + self.narrow(F.gelu(self.wide(self.norm2(h)), approximate="tanh"))


class GPT(nn.Module):
    """Language model; its output layer has the weights of its embedding."""

    def __init__(self, vocabulary: int, time: int, layers: int, width: int, heads: int):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(time, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            h = block(h)
        return (self.norm(h) @ self.tokens.weight.T).transpose(1, 2)


class LSTM(nn.Module):
    """Two layers, and a linear one on the last output."""

    def __init__(self, inputs: int, width: int, classes: int):
        super().__init__()
        self.layers = nn.LSTM(inputs, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(sequences)[0][:, -1])


def per_example(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of each example; the classes are the second dimension."""
    return F.cross_entropy(outputs, labels, reduction="none").reshape(len(labels), -1).mean(1)


def inner(x, model, batch):
    inputs, labels, rows = batch
    return (torch.sigmoid(x[rows]) * per_example(model(inputs), labels)).mean()


def outer(x, model, batch):
    inputs, labels = batch
    return per_example(model(inputs), labels).mean()


@dataclass(frozen=True)
class Task:
    title: str
    build: Callable[[], torch.nn.Module]
    inputs: tuple[int, ...]  # shape of an example
    rows: int
    labels: tuple[int, ...] = ()
    classes: int = 10
    tokens: bool = False
    heads: int = 1


SIZES = {
    "tiny": {  # shows that everything runs
        "mlp": dict(inputs=5, width=6, rows=8),
        "cnn": dict(channels=2, side=8, width=3, rows=8),
        "gpt": dict(vocabulary=11, time=5, layers=1, width=8, heads=2, rows=4),
        "lstm": dict(inputs=3, width=5, time=6, rows=4),
    },
    "small": {  # for a CPU
        "mlp": dict(inputs=784, width=256, rows=256),
        "cnn": dict(channels=3, side=16, width=8, rows=32),
        "gpt": dict(vocabulary=256, time=32, layers=2, width=64, heads=4, rows=4),
        "lstm": dict(inputs=16, width=64, time=50, rows=32),
    },
    "large": {  # for a GPU
        "mlp": dict(inputs=784, width=2048, rows=4096),
        "cnn": dict(channels=3, side=32, width=64, rows=512),
        "gpt": dict(vocabulary=8192, time=256, layers=12, width=512, heads=8, rows=16),
        "lstm": dict(inputs=64, width=512, time=100, rows=256),
    },
}


def tasks(size: str) -> dict[str, Task]:
    mlp, cnn, gpt, lstm = (SimpleNamespace(**each) for each in SIZES[size].values())
    return {
        "mlp": Task("MLP with batch norm", lambda: MLP(mlp.inputs, mlp.width, 10), (mlp.inputs,), mlp.rows),
        "cnn": Task(
            "CNN", lambda: CNN(cnn.channels, cnn.width, 10), (cnn.channels, cnn.side, cnn.side), cnn.rows
        ),
        "gpt": Task(
            "GPT",
            lambda: GPT(gpt.vocabulary, gpt.time, gpt.layers, gpt.width, gpt.heads),
            (gpt.time,),
            gpt.rows,
            (gpt.time,),
            gpt.vocabulary,
            True,
            gpt.heads,
        ),
        "lstm": Task("LSTM", lambda: LSTM(lstm.inputs, lstm.width, 10), (lstm.time, lstm.inputs), lstm.rows),
    }


def data_of(task: Task) -> bl.Batch:
    """Return tensors of both levels."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda high, *shape: torch.randint(high, (task.rows, *shape), generator=generator)
    inputs = lambda: (
        draw(task.classes, *task.inputs)
        if task.tokens
        else torch.randn(task.rows, *task.inputs, generator=generator)
    )
    labels = lambda: draw(task.classes, *task.labels)
    return bl.Batch(inner=(inputs(), labels(), torch.arange(task.rows)), outer=(inputs(), labels()))
