"""Loss weights w(sigma), stated once on the x0-prediction loss w |D - x0|^2, and what modifies them.

The frameworks' own weights are ``Framework.weight``; here are the field's others, the algebra that restates any of them for
another prediction, the learnt weight, and the warm-up.
"""

from headway.weighting.algebra import PREDICTIONS, Prediction, convert
from headway.weighting.uncertainty import UncertainLoss, Uncertainty
from headway.weighting.warmup import warmed_up, warmup_ceiling
from headway.weighting.weights import WEIGHTS, debiased, min_snr, p2, soft_min_snr, speed, weight_for

__all__ = [
    "PREDICTIONS",
    "WEIGHTS",
    "Prediction",
    "UncertainLoss",
    "Uncertainty",
    "convert",
    "debiased",
    "min_snr",
    "p2",
    "soft_min_snr",
    "speed",
    "warmed_up",
    "warmup_ceiling",
    "weight_for",
]
