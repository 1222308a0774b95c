"""Measuring samples: the Fréchet distance, feature extractors that say what they are, and a floor and a ceiling."""

from headway.metrics.baseline import gaussian_baseline
from headway.metrics.classifier import ClassifierExtractor, classifier_for
from headway.metrics.extractors import extractor_for, module_extractor
from headway.metrics.features import Extractor, ModuleExtractor, metric_name
from headway.metrics.frechet import FeatureStats, frechet_distance
from headway.metrics.inception import inception_extractor
from headway.metrics.judge import Judge, Quality
from headway.metrics.orientation import OrientationExtractor, orientation_for

__all__ = [
    "ClassifierExtractor",
    "Extractor",
    "FeatureStats",
    "Judge",
    "ModuleExtractor",
    "OrientationExtractor",
    "Quality",
    "classifier_for",
    "extractor_for",
    "frechet_distance",
    "gaussian_baseline",
    "inception_extractor",
    "metric_name",
    "module_extractor",
    "orientation_for",
]
