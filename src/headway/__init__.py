"""Headway trains diffusion models in fewer images, fewer seconds and fewer sampling steps, and proves it.

The public names are few and load on first use, so that ``headway --help`` need not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.denoiser import Denoiser, convert
    from headway.errors import HeadwayError
    from headway.frameworks import Framework, Oscillator, framework
    from headway.ideal import GaussianMixture, IdealDenoiser
    from headway.metrics import frechet_distance
    from headway.noise import CurriculumTimesteps
    from headway.optim import MomentumDecay
    from headway.recipes import Recipe
    from headway.sampling import Samples, sample
    from headway.training import load, train
    from headway.weighting import min_snr

_HOME = {
    "CurriculumTimesteps": "noise",
    "Denoiser": "denoiser",
    "Framework": "frameworks",
    "GaussianMixture": "ideal",
    "HeadwayError": "errors",
    "IdealDenoiser": "ideal",
    "MomentumDecay": "optim",
    "Oscillator": "frameworks",
    "Recipe": "recipes",
    "Samples": "sampling",
    "convert": "denoiser",
    "frechet_distance": "metrics",
    "framework": "frameworks",
    "load": "training",
    "min_snr": "weighting",
    "sample": "sampling",
    "train": "training",
}

__all__ = [
    "CurriculumTimesteps",
    "Denoiser",
    "Framework",
    "GaussianMixture",
    "HeadwayError",
    "IdealDenoiser",
    "MomentumDecay",
    "Oscillator",
    "Recipe",
    "Samples",
    "convert",
    "framework",
    "frechet_distance",
    "load",
    "min_snr",
    "sample",
    "train",
]
__version__ = version("headway")


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"headway.{_HOME[name]}"), name)
    raise AttributeError(f"module 'headway' has no attribute {name!r}")
