"""Choosing an extractor by name: the data set's own classifier, the standard FID network, or any module of yours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

from headway.data import ImageSet
from headway.errors import HeadwayError, unknown
from headway.metrics.classifier import classifier_for
from headway.metrics.features import Extractor, ModuleExtractor
from headway.metrics.inception import inception_extractor
from headway.metrics.orientation import orientation_for


def extractor_for(
    choice: str,
    train: ImageSet,
    heldout: ImageSet,
    *,
    weights: Path | str | None = None,
    device: torch.device | str = "cpu",
    cache: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Extractor:
    """The extractor that a recipe names: "classifier", "inception" or "package.module:Factory".

    `weights` is the file for "inception" (default: that of $HEADWAY_FID_WEIGHTS); the other options are those of
    `classifier_for`.
    """
    if choice == "classifier":
        return classifier_for(train, heldout, device=device, cache=cache, progress=progress)
    if choice == "orientation":
        return orientation_for(train, heldout, device=device, cache=cache, progress=progress)
    if choice == "inception":
        return inception_extractor(weights, device)
    if ":" in choice:
        return module_extractor(choice, (train.channels, *train.size), device)
    raise unknown("extractor", choice, ["classifier", "orientation", "inception", "package.module:Factory"])


def module_extractor(
    source: str | nn.Module, shape: tuple[int, int, int], device: torch.device | str = "cpu"
) -> ModuleExtractor:
    """Any network as an extractor for images of `shape` (C, H, W).

    `source` is "package.module:Factory", where the factory is called without arguments and returns an nn.Module (or
    is one), or the module itself, which is copied. It takes images in [-1, 1], so put your normalisation and resize
    into its forward; see `ModuleExtractor` for what it may return.
    """
    if isinstance(source, nn.Module):
        module, name = copy.deepcopy(source), f"{type(source).__module__}:{type(source).__qualname__}"
    else:
        module, name = _import(source), source
    try:
        return ModuleExtractor(module, name, shape, device)
    except HeadwayError:
        raise
    except Exception as error:
        raise HeadwayError(f"Extractor {name!r} does not work on images of shape {shape}: {error}") from error


def _import(source: str) -> nn.Module:
    path, _, attribute = source.partition(":")
    try:
        made = getattr(import_module(path), attribute)
        module = made if isinstance(made, nn.Module) else made()
    except Exception as error:  # other people's code may raise anything
        raise HeadwayError(
            f"Cannot make the extractor {source!r}: {type(error).__name__}: {error}; give package.module:Factory, where "
            "the package can be imported (is its folder on PYTHONPATH?) and Factory() returns a torch module."
        ) from error
    if not isinstance(module, nn.Module):
        raise HeadwayError(f"{source!r} returns a {type(module).__name__}; an extractor must be a torch.nn.Module.")
    return module
