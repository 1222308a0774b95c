"""Optimisation as pure functions of images seen: learning rate, momentum decay, weight averages; and optimisers by name."""

from headway.optim.build import OPTIMIZERS, make_optimizer
from headway.optim.ema import WeightAverage, ema_decay
from headway.optim.groups import beta1_of, set_rates
from headway.optim.laws import LAWS, Law, Rates, after_warmup, law
from headway.optim.momentum_decay import MomentumDecay
from headway.optim.owners import check_owner
from headway.optim.schedule import learning_rate

__all__ = [
    "LAWS",
    "OPTIMIZERS",
    "Law",
    "MomentumDecay",
    "Rates",
    "WeightAverage",
    "after_warmup",
    "beta1_of",
    "check_owner",
    "ema_decay",
    "law",
    "learning_rate",
    "make_optimizer",
    "set_rates",
]
