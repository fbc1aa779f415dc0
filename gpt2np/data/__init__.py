"""A corpus → a file of ids."""

from gpt2np.data.dataset import Dataset as Dataset
from gpt2np.data.dataset import DatasetOptions as DatasetOptions
from gpt2np.data.dataset import Watcher as Watcher
from gpt2np.data.dataset import encode_dataset as encode_dataset
