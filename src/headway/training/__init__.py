"""Training: the loop, its randomness, checkpoints and the run folder."""

from headway.training.loop import Trained, open_data, train
from headway.training.run import Run, load

__all__ = ["Run", "Trained", "load", "open_data", "train"]
