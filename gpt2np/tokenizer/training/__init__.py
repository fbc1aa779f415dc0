"""Training of a vocabulary on text."""

from gpt2np.tokenizer.training.report import TrainingReport, report_training
from gpt2np.tokenizer.training.train import TrainedVocabulary, train
from gpt2np.tokenizer.training_options import TrainingOptions

__all__ = ["TrainedVocabulary", "TrainingOptions", "TrainingReport", "report_training", "train"]
