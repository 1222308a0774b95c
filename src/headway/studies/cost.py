"""What a recipe costs, computed before anything is trained: parameters, FLOPs, memory, GPU-hours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.backbones import flops
from headway.gan import GanRecipe
from headway.gan.state import build_networks
from headway.recipes import Recipe
from headway.training.run import Run, build_network

# The stated machine of the estimates: NVIDIA A100, dense peak with TF32 or bf16 matrix units, and the share of it that
# diffusion U-Nets of this size typically reach. An estimate, not a measurement.
GPU, PEAK, UTILISATION = "A100 80 GB", {"fp32": 156e12, "bf16": 312e12, "fp16": 312e12}, 0.35


@dataclass(frozen=True)
class Cost:
    """What training takes.

    Attributes:
        parameters: of the network. flops: of one forward pass of one image. activations: bytes kept for the backward pass of
            one image. fixed: bytes of weights, gradients, Adam's moments and weight averages.
    """

    parameters: int
    flops: int
    activations: int
    fixed: int

    def training_flops(self, images: int) -> float:
        """Forward and backward: three forward passes an image."""
        return 3.0 * self.flops * images


def cost(recipe: Recipe) -> Cost:
    """The cost of a recipe whose image shape is known. Nothing is allocated: the network is built on the meta device."""
    with torch.device("meta"):
        network = build_network(recipe)
    parameters = sum(p.numel() for p in network.parameters())
    averages = len(recipe.train.ema) if isinstance(recipe.train.ema, tuple) else 1
    channels, *size = recipe.image_shape
    return Cost(
        parameters,
        flops(network, channels, (size[0], size[1])),
        _activations(network, recipe.image_shape),
        4 * parameters * (4 + averages),
    )


def _activations(network: nn.Module, shape: tuple[int, int, int]) -> int:
    """Bytes that autograd keeps for one image, in float32, counted on the meta device."""
    kept: dict[int, tuple[Tensor, int]] = {}
    weights = {id(p) for p in network.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        if id(tensor) not in weights:
            kept[id(tensor)] = (tensor, tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(torch.empty(1, *shape, device="meta"), torch.empty(1, device="meta"), None)
    return sum(size for _, size in kept.values())


def describe(recipe: Recipe | GanRecipe, run: Run | None = None) -> str:
    """All that a recipe decides and costs, for people; for a run also where it stands."""
    lines = [f"{recipe.name}: {recipe.about}" if recipe.about else recipe.name]
    if run is not None:
        records = run.metrics()
        seen = records[-1]["nimg"] if records else 0
        lines.append(
            f"run: {run.folder}, {seen:,} of {recipe.train.images:,} images seen, {len(run.evaluations())} evaluations"
        )
    if recipe.data.size == "auto" or recipe.architecture == "auto":
        lines.append("cost: depends on the images; name them with --data to see parameters, FLOPs and memory")
    elif isinstance(recipe, Recipe):
        lines += _cost_lines(recipe, cost(recipe))
    else:
        lines.append(_gan_line(recipe))
    if isinstance(recipe, Recipe) and recipe.published:
        lines += ["published figures to compare with (not run here):", *_published_lines(recipe.published)]
    return "\n".join(lines) + "\n\n" + recipe.to_yaml()


def _gan_line(recipe: GanRecipe) -> str:
    with torch.device("meta"):
        players = zip(("generator", "discriminator"), build_networks(recipe), strict=True)
        counts = [f"{name} {sum(p.numel() for p in network.parameters()):,}" for name, network in players]
    return f"parameters: {', '.join(counts)}"


def _cost_lines(recipe: Recipe, c: Cost) -> list[str]:
    train = recipe.train
    total = c.training_flops(train.images)
    precision = "fp32" if train.precision == "auto" else train.precision
    total_memory = c.fixed + train.batch / train.accumulation * c.activations
    hours = total / (PEAK[precision] * UTILISATION) / 3600
    return [
        f"network: {recipe.network.preset}, {c.parameters:,} parameters, {c.flops / 1e9:.3g} GFLOP an image (forward)",
        f"training: {train.images:,} images, {total:.3g} FLOP, about {hours:.3g} GPU-hours on an {GPU} at {UTILISATION:.0%} of its "
        f"{'TF32' if precision == 'fp32' else precision} peak (an estimate)",
        f"memory: {c.fixed / 2**20:,.0f} MiB for weights, gradients, Adam and averages, {c.activations / 2**20:,.1f} MiB an "
        f"image for activations in fp32: {total_memory / 2**30:,.1f} GiB for a batch of {train.batch} in "
        f"{train.accumulation} step(s) on one device",
    ]


def _published_lines(published: dict[str, Any]) -> list[str]:
    return [f"  {key}: {value}" for key, value in published.items()]
