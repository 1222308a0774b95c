"""Consistency: do models that were trained apart make the same image of the same noise, and why."""

from headway.consistency.gaussian import MatchedGaussian
from headway.consistency.identity import IdentityCurve, eps_cosine, gaussian_eps_cosine
from headway.consistency.scores import (
    Consistency,
    consistency_score,
    cosine,
    derangement,
    interval,
    psnr,
    same_and_random,
    ssim,
)
from headway.consistency.trajectories import Swapped, Trajectory, trajectory

__all__ = [
    "Consistency",
    "IdentityCurve",
    "MatchedGaussian",
    "Swapped",
    "Trajectory",
    "consistency_score",
    "cosine",
    "derangement",
    "eps_cosine",
    "gaussian_eps_cosine",
    "interval",
    "psnr",
    "same_and_random",
    "ssim",
    "trajectory",
]
