"""Small networks with the layers of well-known ones, and losses with a weight for each training example."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

EXAMPLES, CLASSES = 12, 3  # training examples, each with a weight


def per_example(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of each example; the classes are the second dimension."""
    return F.cross_entropy(outputs, labels, reduction="none").reshape(len(labels), -1).mean(1)


def weighted(x: torch.Tensor, model: Any, batch: Any) -> torch.Tensor:
    """Return the loss of data reweighting."""
    inputs, labels, rows = batch
    return (torch.sigmoid(x[rows]) * per_example(model(inputs), labels)).mean()


def plain(x: torch.Tensor, model: Any, batch: Any) -> torch.Tensor:
    """Return the mean loss, which does not depend on x."""
    inputs, labels = batch
    return per_example(model(inputs), labels).mean()


class MLP(nn.Sequential):
    def __init__(self, dropout: float = 0.0):
        first = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(dropout)
        super().__init__(*first, nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES))


class FrozenMLP(MLP):
    """MLP whose first layer does not move."""

    def __init__(self):
        super().__init__()
        self[0].requires_grad_(False)


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second, self.group = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2), nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        h = F.max_pool2d(F.relu(self.norm(self.first(images))), 2)
        h = F.gelu(self.group(self.second(h)))
        return self.head(h.mean((2, 3)))


class Block(nn.Module):
    """Block of GPT-2: normalization comes first."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        n, time, width = h.shape
        split = lambda part: part.view(n, time, self.heads, width // self.heads).transpose(1, 2)
        q, k, v = (split(part) for part in self.mix(self.norm1(h)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(mixed.transpose(1, 2).reshape(n, time, width))
        return h + self.narrow(F.gelu(self.wide(self.norm2(h)), approximate="tanh"))


class GPT(nn.Module):
    """Language model whose output layer has the weights of its embedding."""

    def __init__(self, vocabulary: int = 11, width: int = 8, heads: int = 2, layers: int = 2, time: int = 5):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(time, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)).transpose(1, 2)


class LSTM(nn.Module):
    def __init__(self, layers: int = 2):
        super().__init__()
        self.layers = nn.LSTM(3, 5, num_layers=layers, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(sequences)[0][:, -1])


class ViT(nn.Module):
    """Vision transformer: patches by a convolution, a class token, `nn.TransformerEncoder`."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.patches = nn.Conv2d(2, width, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, width) / 5)
        self.places = nn.Parameter(torch.randn(1, 5, width) / 5)
        options: dict[str, Any] = {
            "dropout": 0.0,
            "activation": "gelu",
            "batch_first": True,
            "norm_first": True,
        }
        layer = nn.TransformerEncoderLayer(width, 2, 12, **options)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        h = self.patches(images).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.places
        return self.head(self.encoder(h)[:, 0])


def convolution(
    inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    padding = size // 2
    conv = nn.Conv2d(inputs, outputs, size, stride, padding, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class BasicBlock(nn.Module):
    """Block of ResNet-18: two convolutions, and a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.path = nn.Sequential(
            *convolution(inputs, outputs, 3, stride), nn.ReLU(inplace=True), *convolution(outputs, outputs)
        )
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return F.relu(self.path(h) + self.skip(h), inplace=True)


class ResNet(nn.Sequential):
    def __init__(self):
        super().__init__(
            *convolution(2, 3, 3, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
            BasicBlock(3, 3, 1), BasicBlock(3, 4, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES),
        )  # fmt: skip


class InvertedResidual(nn.Module):
    """Block of MobileNetV2: expand, convolve each channel, project; a skip connection where shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int):
        super().__init__()
        wide = inputs * expand
        self.path = nn.Sequential(
            *convolution(inputs, wide, 1), nn.ReLU6(inplace=True),
            *convolution(wide, wide, 3, stride, groups=wide), nn.ReLU6(inplace=True),
            *convolution(wide, outputs, 1),
        )  # fmt: skip
        self.skips = stride == 1 and inputs == outputs

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.path(h) if self.skips else self.path(h)


class MobileNetV2(nn.Sequential):
    def __init__(self):
        super().__init__(
            *convolution(2, 4, 3, 2), nn.ReLU6(inplace=True),
            InvertedResidual(4, 3, 2, 2), InvertedResidual(3, 3, 1, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.0), nn.Linear(3, CLASSES),
        )  # fmt: skip


class UNet(nn.Module):
    """U-Net with two levels: one goes up by a transposed convolution, one by bilinear interpolation."""

    def __init__(self):
        super().__init__()
        once = lambda i, o: nn.Sequential(*convolution(i, o), nn.ReLU())
        self.down1, self.down2 = once(2, 3), once(3, 4)
        self.bottom = nn.Sequential(once(4, 4), once(4, 4))
        self.pool = nn.MaxPool2d(2)
        self.up2, self.join2 = nn.ConvTranspose2d(4, 4, 2, stride=2), once(8, 3)
        self.up1, self.join1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), once(6, 3)
        self.head = nn.Conv2d(3, CLASSES, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        high = self.down1(images)
        middle = self.down2(self.pool(high))
        low = self.bottom(self.pool(middle))
        middle = self.join2(torch.cat([middle, self.up2(low)], 1))
        return self.head(self.join1(torch.cat([high, self.up1(middle)], 1)))


class Architecture(NamedTuple):
    """A module, and the shape of one example and of its label."""

    build: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    labels: tuple[int, ...] = ()
    classes: int = CLASSES
    tokens: int = 0  # size of the vocabulary, for models of text

    def model(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        torch.manual_seed(0)
        model = self.build()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():  # so that no parameter or buffer is zero, one or symmetric
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
            for name, buffer in model.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    buffer += 0.3 * torch.rand(buffer.shape, generator=generator)
        return model.to(dtype)

    def data(
        self, count: int, dtype: torch.dtype = torch.float64, seed: int = 2
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and labels of `count` examples."""
        generator = torch.Generator().manual_seed(seed)
        draw = lambda high, shape: torch.randint(high, (count, *shape), generator=generator)
        inputs = torch.randn(count, *self.inputs, generator=generator, dtype=torch.float64).to(dtype)
        inputs = draw(self.tokens, self.inputs) if self.tokens else inputs
        return inputs, draw(self.classes, self.labels)


ARCHITECTURES = {
    "mlp": Architecture(MLP, (4,)),
    "frozen mlp": Architecture(FrozenMLP, (4,)),
    "cnn": Architecture(CNN, (2, 8, 8)),
    "gpt": Architecture(GPT, (5,), (5,), 11, 11),
    "one-block gpt": Architecture(lambda: GPT(layers=1), (5,), (5,), 11, 11),
    "lstm": Architecture(LSTM, (4, 3)),
    "vit": Architecture(ViT, (2, 8, 8)),
    "resnet": Architecture(ResNet, (2, 9, 9)),
    "mobilenet": Architecture(MobileNetV2, (2, 8, 8)),
    "unet": Architecture(UNet, (2, 8, 8), (8, 8)),
}


def weights(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return a start for x, one number for each training example."""
    return torch.linspace(-1, 1, EXAMPLES, dtype=dtype)
