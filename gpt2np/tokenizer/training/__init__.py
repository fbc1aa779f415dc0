"""Training of a vocabulary on text."""

from gpt2np.tokenizer.training.report import TrainingReport as TrainingReport
from gpt2np.tokenizer.training.report import report_training as report_training
from gpt2np.tokenizer.training.train import TrainedVocabulary as TrainedVocabulary
from gpt2np.tokenizer.training.train import TrainingOptions as TrainingOptions
from gpt2np.tokenizer.training.train import train as train
