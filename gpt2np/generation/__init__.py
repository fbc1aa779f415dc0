"""Logits → ids."""

from gpt2np.generation.filters import apply_temperature, top_k_filter, top_p_filter
from gpt2np.generation.loop import FinishReason, RunningSequence, decode_step, start_sequence
from gpt2np.generation.options import (
    GENERATION_CONFIG_FILE,
    GenerationOptions,
    read_generation_config,
)
from gpt2np.generation.sampler import next_id, next_probabilities
from gpt2np.generation.stop import StopStrings

__all__ = [
    "GENERATION_CONFIG_FILE",
    "FinishReason",
    "GenerationOptions",
    "RunningSequence",
    "StopStrings",
    "apply_temperature",
    "decode_step",
    "next_id",
    "next_probabilities",
    "read_generation_config",
    "start_sequence",
    "top_k_filter",
    "top_p_filter",
]
