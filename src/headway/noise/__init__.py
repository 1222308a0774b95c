"""Noise levels: which sigma a training image gets."""

from headway.noise.clts import clts
from headway.noise.density import Density, LogNormal, LogUniform, UniformTime
from headway.noise.online import EntropyRate, Online, TaskDifficulty
from headway.noise.quantile import Tilted, importance
from headway.noise.registry import DENSITIES, build, options
from headway.noise.rivals import beta, cosmap, laplace, logit_normal, mode, speed, two_phase
from headway.noise.spaces import VP_TIME
from headway.noise.stratify import stratified
from headway.noise.timesteps import CurriculumTimesteps

__all__ = [
    "DENSITIES",
    "VP_TIME",
    "CurriculumTimesteps",
    "Density",
    "EntropyRate",
    "LogNormal",
    "LogUniform",
    "Online",
    "TaskDifficulty",
    "Tilted",
    "UniformTime",
    "beta",
    "build",
    "clts",
    "cosmap",
    "importance",
    "laplace",
    "logit_normal",
    "mode",
    "options",
    "speed",
    "stratified",
    "two_phase",
]
