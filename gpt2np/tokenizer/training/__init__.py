"""Training of a vocabulary on text."""

from gpt2np.tokenizer.training.report import TrainingReport, report_training
from gpt2np.tokenizer.training.train import TrainedVocabulary, TrainingOptions, train

__all__ = ["TrainedVocabulary", "TrainingOptions", "TrainingReport", "report_training", "train"]
