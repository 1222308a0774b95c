"""Studies: measuring runs and showing them side by side."""

from headway.studies.evaluation import evaluate
from headway.studies.report import write_report

__all__ = ["evaluate", "write_report"]
