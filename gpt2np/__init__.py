"""GPT-2 in NumPy: model, tokenizer, text generation and interpretability.

    import gpt2np
    lm = gpt2np.load("bundled")
    print(lm.generate("Once upon a time", max_new_tokens=50, seed=1).text)

load                  loads a LanguageModel by name or from a folder
LanguageModel         a model with its tokenizer: generate, stream, generate_batch, score
Completion            a generated text with its token ids and statistics
TextStream            a text that the model is still generating
GenerationOptions     options of generation, such as temperature and stop strings
Tokenizer             encodes text as token ids, and decodes token ids
GPT2, GPT2Config      the model, from token ids to logits, and its config
KVCache               the keys and values of one sequence
trace                 runs a forward pass and records its activations
Trace                 the recorded activations, by hook point
GPT2NPError           base class of all errors
GenerationInterrupted Ctrl-C during a generation; holds the texts so far

Each name is imported on first use, so `import gpt2np` is fast.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    from gpt2np.checkpoint.config import GPT2Config as GPT2Config
    from gpt2np.errors import CheckpointError as CheckpointError
    from gpt2np.errors import ContextLengthError as ContextLengthError
    from gpt2np.errors import GenerationInterrupted as GenerationInterrupted
    from gpt2np.errors import GPT2NPError as GPT2NPError
    from gpt2np.errors import InvalidArgumentError as InvalidArgumentError
    from gpt2np.errors import ModelNotFoundError as ModelNotFoundError
    from gpt2np.errors import TokenizerError as TokenizerError
    from gpt2np.generation.completion import Completion as Completion
    from gpt2np.generation.options import GenerationOptions as GenerationOptions
    from gpt2np.generation.streaming import TextStream as TextStream
    from gpt2np.interp.trace import Trace as Trace
    from gpt2np.interp.trace import trace as trace
    from gpt2np.language_model import LanguageModel as LanguageModel
    from gpt2np.model import GPT2 as GPT2
    from gpt2np.model import KVCache as KVCache
    from gpt2np.tokenizer import Tokenizer as Tokenizer

    load = LanguageModel.load

__version__ = "0.2.0"

_NAMES = {
    "checkpoint.config": "GPT2Config",
    "errors": "CheckpointError ContextLengthError GPT2NPError GenerationInterrupted "
    "InvalidArgumentError ModelNotFoundError TokenizerError",
    "generation.completion": "Completion",
    "generation.options": "GenerationOptions",
    "generation.streaming": "TextStream",
    "interp": "Trace trace",
    "language_model": "LanguageModel",
    "model": "GPT2 KVCache",
    "tokenizer": "Tokenizer",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [*_MODULE_OF, "load"]


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__version__"]


def __getattr__(name: str) -> object:
    if name == "load":
        return import_module("gpt2np.language_model").LanguageModel.load
    if name in _MODULE_OF:
        return getattr(import_module(f"gpt2np.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
