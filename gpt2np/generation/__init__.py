"""Logits → ids."""

from gpt2np.generation.config_file import GENERATION_CONFIG_FILE, read_generation_config
from gpt2np.generation.filters import (
    apply_temperature,
    min_p_filter,
    top_k_filter,
    top_p_filter,
    typical_filter,
)
from gpt2np.generation.loop import decode_step
from gpt2np.generation.options import GenerationOptions, Options
from gpt2np.generation.sampler import RandomStream, new_seed, next_id, next_probabilities
from gpt2np.generation.scheduler import Scheduler
from gpt2np.generation.sequence import FinishReason, RunningSequence, start_sequence
from gpt2np.generation.stop import StopStrings

__all__ = [
    "GENERATION_CONFIG_FILE",
    "FinishReason",
    "GenerationOptions",
    "Options",
    "RandomStream",
    "RunningSequence",
    "Scheduler",
    "StopStrings",
    "apply_temperature",
    "decode_step",
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
