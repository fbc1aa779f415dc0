"""A corpus → a file of ids."""

from gpt2np.tokenizer.dataset.encode import Dataset as Dataset
from gpt2np.tokenizer.dataset.encode import DatasetOptions as DatasetOptions
from gpt2np.tokenizer.dataset.encode import Watcher as Watcher
from gpt2np.tokenizer.dataset.encode import encode_dataset as encode_dataset
