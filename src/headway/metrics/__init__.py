"""Measuring samples: distances, overlap and copies in the features of a stated extractor, beside a floor and a ceiling."""

from headway.metrics.baseline import gaussian_baseline
from headway.metrics.classifier import ClassifierExtractor, classifier_for
from headway.metrics.coverage import Overlap, overlap
from headway.metrics.extractors import extractor_for, module_extractor
from headway.metrics.features import Extractor, ModuleExtractor, metric_name
from headway.metrics.frechet import FeatureStats, frechet_distance
from headway.metrics.inception import inception_extractor
from headway.metrics.judge import Judge
from headway.metrics.kid import kernel_distance, kernel_distance_over_subsets
from headway.metrics.memorisation import Copies, find_copies
from headway.metrics.mmd import gaussian_mmd2, median_bandwidth, unbiased_mmd2
from headway.metrics.neighbours import nearest
from headway.metrics.orientation import OrientationExtractor, orientation_for
from headway.metrics.quality import Quality

__all__ = [
    "ClassifierExtractor",
    "Copies",
    "Extractor",
    "FeatureStats",
    "Judge",
    "ModuleExtractor",
    "OrientationExtractor",
    "Overlap",
    "Quality",
    "classifier_for",
    "extractor_for",
    "find_copies",
    "frechet_distance",
    "gaussian_baseline",
    "gaussian_mmd2",
    "inception_extractor",
    "kernel_distance",
    "kernel_distance_over_subsets",
    "median_bandwidth",
    "metric_name",
    "module_extractor",
    "nearest",
    "orientation_for",
    "overlap",
    "unbiased_mmd2",
]
