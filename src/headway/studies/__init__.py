"""Studies: measuring runs and showing them side by side."""

from headway.studies.evaluation import evaluate
from headway.studies.generation import generate
from headway.studies.report import write_report

__all__ = ["evaluate", "generate", "write_report"]
