"""Generation: logits → token ids → text.

options, config_file           generation options; their defaults from generation_config.json
logits_processors, sampling    penalties and filters; selection of the next token id
request                        from the arguments of `generate` to a request
complete                       from requests to completions
sequence, scheduler            sequences that run in batches, one forward pass per step
detokenizer                    decoding of token ids to text as they arrive, up to a stop string
stop_regex                     stop regexes
streaming, async_engine        streams of text, and results; streams for asyncio and the server
beam_search, speculation       beam search; speculative decoding
scoring                        log probabilities of given texts

Each name is imported on first use: the command line reads the options before it imports NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gpt2np.generation.options import GenerationOptions, Options

if TYPE_CHECKING:
    from gpt2np.generation.logits_processors import (
        apply_temperature,
        min_p_filter,
        top_k_filter,
        top_p_filter,
        typical_filter,
    )
    from gpt2np.generation.request import Request
    from gpt2np.generation.sampling import RandomGenerator, next_id, next_probabilities
    from gpt2np.generation.scheduler import Scheduler
    from gpt2np.generation.sequence import RunningSequence, start_sequence

__all__ = [
    "GenerationOptions",
    "Options",
    "RandomGenerator",
    "Request",
    "RunningSequence",
    "Scheduler",
    "apply_temperature",
    "min_p_filter",
    "next_id",
    "next_probabilities",
    "start_sequence",
    "top_k_filter",
    "top_p_filter",
    "typical_filter",
]

_MODULES = ("logits_processors", "request", "sampling", "scheduler", "sequence")


def __getattr__(name: str) -> object:
    if name in __all__:
        for module in _MODULES:
            if hasattr(contents := import_module(f"{__name__}.{module}"), name):
                return getattr(contents, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
