"""Noise levels: which sigma a training image gets."""

from headway.noise.density import Density, LogNormal, LogUniform, UniformTime

__all__ = ["Density", "LogNormal", "LogUniform", "UniformTime"]
