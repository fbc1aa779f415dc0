"""Generation: logits → token ids → text.

options, config_file           what a caller or a model's generation_config.json asks for
logits_processors, sampling    logits → the next id and its log probability
sequence, scheduler            sequences that run in batches, one forward pass per step
streaming, stopping            ids → text as it grows, up to a stop
beam_search, speculation       other ways to search, and to save forward passes
scoring                        log probabilities of given texts
"""

from gpt2np.generation.config_file import GENERATION_CONFIG_FILE, read_generation_config
from gpt2np.generation.logits_processors import (
    apply_temperature,
    min_p_filter,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from gpt2np.generation.options import GenerationOptions, Options
from gpt2np.generation.sampling import RandomGenerator, new_seed, next_id, next_probabilities
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import FinishReason, RunningSequence, start_sequence
from gpt2np.generation.stopping import StopStrings

__all__ = [
    "GENERATION_CONFIG_FILE",
    "FinishReason",
    "GenerationOptions",
    "Options",
    "RandomGenerator",
    "RunningSequence",
    "Scheduler",
    "StopStrings",
    "apply_temperature",
    "min_p_filter",
    "new_seed",
    "next_id",
    "next_probabilities",
    "read_generation_config",
    "start_sequence",
    "top_k_filter",
    "top_p_filter",
    "typical_filter",
]
