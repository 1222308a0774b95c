"""The standard FID network: Inception-v3 as in TensorFlow's graph of 2015, run from a weights file of yours.

Architecture: Szegedy et al. 2015, arXiv 1512.00567. The graph of 2015 differs from networks published later: average
pooling leaves the padding out of the mean, the last block pools by maximum, and there are 1008 logits.
Headway ships no weights; the file is the one that pytorch-fid and torch-fidelity download.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.metrics.features import ModuleExtractor

SIDE = 299
PUBLISHED = "6726825d"
"""First digits of the SHA-256 of the published file, as its name gives them."""

_WHERE = (
    "set HEADWAY_FID_WEIGHTS to the path of pt_inception-2015-12-05-6726825d.pth (pytorch-fid) or "
    "weights-inception-2015-12-05-6726825d.pth (torch-fidelity); these tools keep it in ~/.cache/torch/hub/checkpoints"
)

Layer = tuple[int, int] | tuple[int, int, int] | tuple[int, tuple[int, int]]
"""Output channels, kernel (side, or height and width), stride if not 1."""

POOLS = {
    "average": partial(F.avg_pool2d, kernel_size=3, stride=1, padding=1, count_include_pad=False),
    "maximum": partial(F.max_pool2d, kernel_size=3, stride=1, padding=1),
    "halving": partial(F.max_pool2d, kernel_size=3, stride=2),
}


class Conv(nn.Module):
    """Convolution, batch normalisation, ReLU. Stride 1 keeps the size unless `padded` is false; stride 2 is not padded."""

    def __init__(
        self, channels: int, out: int, kernel: int | tuple[int, int], stride: int = 1, padded: bool = True
    ) -> None:
        super().__init__()
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (height // 2, width // 2) if padded and stride == 1 else (0, 0)
        self.conv = nn.Conv2d(channels, out, (height, width), stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class Mixed(nn.Module):
    """Branches side by side, concatenated. A branch is a chain of layers; "branch_pool" begins with pooling.

    A list in place of a layer is a fork: its two layers take the same input. Submodules are named as in the weights
    file: after the branch, with their place if it has several layers, and with a or b in a fork.
    """

    def __init__(self, channels: int, pool: str, **branches: list[Layer | list[Layer]]) -> None:
        super().__init__()
        self.pool = POOLS[pool]
        self.chains: dict[str, list[list[str]]] = {}
        self.out = 0
        for branch, layers in branches.items():
            chain, width = [], channels
            for place, layer in enumerate(layers, 1):
                name = branch if len(layers) == 1 else f"{branch}_{place}"
                step = {name: layer} if isinstance(layer, tuple) else {name + "a": layer[0], name + "b": layer[1]}
                for key, spec in step.items():
                    self.add_module(key, Conv(width, *spec))
                width = sum(spec[0] for spec in step.values())
                chain.append(list(step))
            self.chains[branch] = chain
            self.out += width

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for branch, chain in self.chains.items():
            y = self.pool(x) if branch == "branch_pool" else x
            for step in chain:
                y = torch.cat([self.get_submodule(key)(y) for key in step], dim=1)
            outputs.append(y)
        return torch.cat(outputs, dim=1)


def _mixed_5(channels: int, pool: int) -> Mixed:
    return Mixed(
        channels,
        "average",
        branch1x1=[(64, 1)],
        branch5x5=[(48, 1), (64, 5)],
        branch3x3dbl=[(64, 1), (96, 3), (96, 3)],
        branch_pool=[(pool, 1)],
    )


def _mixed_6(inner: int) -> Mixed:
    tall, wide = (inner, (7, 1)), (inner, (1, 7))
    return Mixed(
        768,
        "average",
        branch1x1=[(192, 1)],
        branch7x7=[(inner, 1), wide, (192, (7, 1))],
        branch7x7dbl=[(inner, 1), tall, wide, tall, (192, (1, 7))],
        branch_pool=[(192, 1)],
    )


def _mixed_7(channels: int, pool: str) -> Mixed:
    fork: list[Layer] = [(384, (1, 3)), (384, (3, 1))]
    return Mixed(
        channels,
        pool,
        branch1x1=[(320, 1)],
        branch3x3=[(384, 1), fork],
        branch3x3dbl=[(448, 1), (384, 3), fork],
        branch_pool=[(192, 1)],
    )


class Inception(nn.Module):
    """Images (n, 1 or 3, H, W) in [-1, 1] to the 2048 features in front of the logits, "pool3".

    Grey is repeated to three channels; every size but 299 x 299 is resized to it, bilinearly between pixel centres and
    without antialiasing, as pytorch-fid does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = Conv(3, 32, 3, stride=2)
        self.Conv2d_2a_3x3 = Conv(32, 32, 3, padded=False)
        self.Conv2d_2b_3x3 = Conv(32, 64, 3)
        self.Conv2d_3b_1x1 = Conv(64, 80, 1)
        self.Conv2d_4a_3x3 = Conv(80, 192, 3, padded=False)
        self.Mixed_5b = _mixed_5(192, pool=32)
        self.Mixed_5c = _mixed_5(256, pool=64)
        self.Mixed_5d = _mixed_5(288, pool=64)
        self.Mixed_6a = Mixed(
            288, "halving", branch3x3=[(384, 3, 2)], branch3x3dbl=[(64, 1), (96, 3), (96, 3, 2)], branch_pool=[]
        )
        self.Mixed_6b = _mixed_6(128)
        self.Mixed_6c = _mixed_6(160)
        self.Mixed_6d = _mixed_6(160)
        self.Mixed_6e = _mixed_6(192)
        self.Mixed_7a = Mixed(
            768,
            "halving",
            branch3x3=[(192, 1), (320, 3, 2)],
            branch7x7x3=[(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)],
            branch_pool=[],
        )
        self.Mixed_7b = _mixed_7(1280, "average")
        self.Mixed_7c = _mixed_7(2048, "maximum")
        self.fc = nn.Linear(2048, 1008)  # in the weights file, but behind the features

    def forward(self, images: Tensor) -> Tensor:
        x = images.expand(-1, 3, -1, -1)
        if x.shape[2:] != (SIDE, SIDE):
            x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", align_corners=False)
        x = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x)))
        x = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(POOLS["halving"](x)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(POOLS["halving"](x))))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        return torch.mean(x, dim=(2, 3))


def inception_extractor(weights: Path | str | None = None, device: torch.device | str = "cpu") -> ModuleExtractor:
    """The FID network with the weights of a file (.pth or .safetensors), by default that of $HEADWAY_FID_WEIGHTS.

    It is named "fid" if the file is the published one, bit for bit, and "inception-299" otherwise.
    """
    given = weights or os.environ.get("HEADWAY_FID_WEIGHTS")
    if not given:
        raise HeadwayError(f"The FID network needs its weights, which Headway does not ship: {_WHERE}.")
    path = Path(given).expanduser()
    if not path.is_file():
        raise HeadwayError(f"There is no file {path} with FID weights: {_WHERE}.")
    with torch.device("meta"):  # no time and no random numbers for weights that are replaced
        network = Inception()
    network.load_state_dict(_read(path, network.state_dict()), assign=True)
    published = hashlib.sha256(path.read_bytes()).hexdigest().startswith(PUBLISHED)
    return ModuleExtractor(network, "fid" if published else f"inception-{SIDE}", (3, SIDE, SIDE), device)


def _read(path: Path, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights in a file, or an error that says what is wrong with it."""
    try:
        if path.suffix == ".safetensors":
            found = safetensors.torch.load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
        shapes = {key: tuple(value.shape) for key, value in found.items()}
    except Exception as error:  # there is no end to what a wrong file can raise
        raise HeadwayError(
            f"{path} is not a plain file of weights ({str(error).splitlines()[0]}): {_WHERE}."
        ) from error
    counters = {key: torch.tensor(0) for key in expected if key.endswith("num_batches_tracked")}
    found = counters | found  # files older than the counters lack them, and evaluation does not use them
    wrong = [
        f"{key} is {shapes[key]}, not {tuple(value.shape)}"
        for key, value in expected.items()
        if key in shapes and shapes[key] != value.shape
    ]
    wrong += [f"{key} is missing" for key in expected if key not in found]
    wrong += [f"{key} is not part of it" for key in found if key not in expected]
    if wrong:
        raise HeadwayError(
            f"{path} does not hold the FID network ({len(wrong)} differences: {'; '.join(wrong[:3])}): {_WHERE}."
        )
    return {key: value.float() if value.is_floating_point() else value for key, value in found.items()}
