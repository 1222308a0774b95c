"""Optimisation as pure functions of images seen: learning rate and weight averages."""

from headway.optim.ema import WeightAverage, ema_decay
from headway.optim.schedule import learning_rate

__all__ = ["WeightAverage", "ema_decay", "learning_rate"]
