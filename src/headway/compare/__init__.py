"""Comparing techniques: a study file in, runs over arms and seeds, figures with intervals and a page out."""

from headway.compare.analysis import Analysis, analyse
from headway.compare.run import compare, run_study
from headway.compare.study import Study

__all__ = ["Analysis", "Study", "analyse", "compare", "run_study"]
