"""Sampling: grids of noise levels, solvers, guidance, and one image per seed."""

from headway.sampling.grids import GRIDS, sigma_grid
from headway.sampling.sample import Samples, sample
from headway.sampling.seeding import seed_noise
from headway.sampling.solvers import SOLVERS, Solver, find_solver, steps_for_nfe

__all__ = [
    "GRIDS",
    "SOLVERS",
    "Samples",
    "Solver",
    "find_solver",
    "sample",
    "seed_noise",
    "sigma_grid",
    "steps_for_nfe",
]
