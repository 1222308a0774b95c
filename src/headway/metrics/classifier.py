"""The data set's own feature extractor: a small classifier trained on it, once, the same way every time.

Where no published network fits the images (digits, drawings, spectra), the penultimate layer of a classifier of the
very data separates what matters in it. Distances in its features compare runs on one data set, never across sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.data import ImageSet
from headway.data.cache import directory
from headway.errors import HeadwayError
from headway.metrics import cache as disk
from headway.metrics.features import ModuleExtractor, full_float32

VERSION = 1
"""Raise it whenever the same images would give another classifier: cached ones are then trained again."""

DIM = 64
BATCH = 64
LR = 4e-3
EPOCHS = 10
IMAGES = 2_000, 100_000
"""Least and most images shown in training, whatever the epochs come to."""


class Classifier(nn.Module):
    """Strided convolutions down to at most 8 x 8 pixels, `DIM` linear features, and a linear head behind a ReLU.

    Without pooling, so that features know where in the image something is.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        halvings = max(0, math.ceil(math.log2(max(height, width) / 8)))
        plan = [(32, 2 if halvings else 1), *[(64, 2)] * (halvings - 1), (64, 1)]
        layers: list[nn.Module] = []
        for out, stride in plan:
            layers += [nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
            channels, height, width = out, -(-height // stride), -(-width // stride)
        self.trunk = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, DIM))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(DIM, classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.trunk(images))
        return logits


class ClassifierExtractor(ModuleExtractor):
    """The features in front of the classifier's head, and the classes it sees."""

    def __init__(
        self, network: Classifier, shape: tuple[int, int, int], accuracy: float, device: torch.device | str
    ) -> None:
        super().__init__(network.trunk, "classifier", shape, device)
        self.head = network.head.to(device).eval().requires_grad_(False)
        self.accuracy = accuracy
        """Share of the held-out images that it classifies as labelled, 0 to 1."""

    def classify(self, features: Tensor) -> Tensor:
        """Class numbers int64 (n,) of features (n, dim)."""
        with torch.no_grad(), full_float32(self.device):
            return torch.argmax(self.head(features), dim=1)

    def predict(self, images: Tensor) -> Tensor:
        """Class numbers int64 (n,) of images (n, C, H, W) in [-1, 1]."""
        return self.classify(self(images))


@torch.inference_mode(False)  # the caller may be sampling; tensors made in that mode cannot be trained with
def classifier_for(
    train: ImageSet,
    heldout: ImageSet,
    device: torch.device | str = "cpu",
    cache: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ClassifierExtractor:
    """The classifier of a labelled training set, trained now or taken from `cache`/classifiers.

    `cache` is a folder (default $HEADWAY_CACHE, else ~/.cache/headway); `progress(images, total)` is called while
    training. Training is deterministic: the same bits for the same images, device, torch version and thread count.
    Elsewhere the weights differ a little, and with them the distances, so copy the cached file to compare machines.
    In several processes, let one of them call this first.
    """
    if train.labels is None or heldout.labels is None:
        raise HeadwayError(
            f"{train.name} has no labels to train a classifier on; use the extractor 'orientation', one of your "
            "own (package.module:Factory), or 'inception' with the FID weights in $HEADWAY_FID_WEIGHTS."
        )
    shape = (train.channels, *train.size)
    recipe = {
        "version": VERSION,
        "train": train.fingerprint,
        "heldout": heldout.fingerprint,
        "shape": list(shape),
        "classes": train.classes,
        "features": DIM,
    }
    path = directory(cache) / "classifiers" / f"{train.fingerprint}.safetensors"
    with torch.random.fork_rng(devices=[]):  # a new module draws weights from the global generator; they are replaced
        network = Classifier(shape, train.classes)
    stored = disk.load(path, recipe)
    if stored is None:
        _fit(network.to(device), train, torch.from_numpy(train.labels), progress)
        accuracy = _accuracy(network, heldout, torch.from_numpy(heldout.labels))
        stored = {**network.state_dict(), "accuracy": torch.tensor(accuracy, dtype=torch.float64)}
        disk.save(path, recipe, stored)
    accuracy = float(stored.pop("accuracy"))
    network.load_state_dict(stored)
    return ClassifierExtractor(network, shape, accuracy, device)


def _fit(network: Classifier, train: ImageSet, labels: Tensor, progress: Callable[[int, int], None] | None) -> None:
    generator = torch.Generator().manual_seed(0)
    device = next(network.parameters()).device
    steps = min(max(EPOCHS * len(train), IMAGES[0]), IMAGES[1]) // BATCH
    _initialise(network, generator)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LR, total_steps=steps)
    deterministic = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        with torch.enable_grad(), full_float32(device):
            for step, rows in zip(range(steps), _batches(len(train), generator), strict=False):
                images = _shift(train.pixels(rows).to(device), generator)
                loss = F.cross_entropy(network(images), labels[rows].to(device))
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                schedule.step()
                if progress:
                    progress((step + 1) * BATCH, steps * BATCH)
    finally:
        torch.backends.cudnn.deterministic = deterministic


def _initialise(network: nn.Module, generator: torch.Generator) -> None:
    """He initialisation on the CPU from one generator, biases zero: the same start on every device."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            start = torch.empty(module.weight.shape)
            nn.init.kaiming_normal_(start, nonlinearity="relu", generator=generator)
            module.weight.data.copy_(start)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _batches(n: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless batches of row numbers; every pass over the n rows is a fresh permutation, passes run into one another."""
    rows = torch.empty(0, dtype=torch.int64)
    while True:
        while len(rows) < BATCH:
            rows = torch.cat([rows, torch.randperm(n, generator=generator)])
        yield rows[:BATCH]
        rows = rows[BATCH:]


def _shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """The batch moved by up to a sixteenth of its size, edges repeated: narrows the gap between seen and unseen images."""
    height, width = images.shape[2:]
    dy, dx = max(1, height // 16), max(1, width // 16)
    y, x = (int(torch.randint(2 * d + 1, (), generator=generator)) for d in (dy, dx))
    return F.pad(images, (dx, dx, dy, dy), mode="replicate")[:, :, y : y + height, x : x + width]


def _accuracy(network: Classifier, images: ImageSet, labels: Tensor) -> float:
    device = next(network.parameters()).device
    network.eval()
    right = 0
    with torch.no_grad(), full_float32(device):
        for rows in torch.split(torch.arange(len(images)), 500):
            logits = network(images.pixels(rows).to(device))
            right += int((logits.argmax(dim=1).cpu() == labels[rows]).sum())
    return right / len(images)
