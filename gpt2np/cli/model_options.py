"""Options --model, --threads and --dtype, and the model that they load."""

import argparse
import warnings
from typing import TYPE_CHECKING

from gpt2np.kernels.threads import set_threads, thread_count

if TYPE_CHECKING:
    from gpt2np.language_model import LanguageModel

MODEL_HELP = "Hugging Face model ID with an optional @REVISION, folder, or 'bundled'"
DEFAULT_MODEL_HELP = (
    "default: $GPT2NP_MODEL if set, else openai-community/gpt2, or the bundled model if that is "
    "not available"
)
THREADS_HELP = "Number of CPU cores to use (default: all)"


def add_model_arguments(
    parser: argparse.ArgumentParser, *, dtype: bool = True
) -> "argparse._ArgumentGroup":
    """Declare --model, --threads and --dtype; without `dtype`, the dtype is float32.

    Returns the group Performance, for further options.
    """
    parser.add_argument("--model", metavar="MODEL", help=f"{MODEL_HELP} ({DEFAULT_MODEL_HELP})")
    parser.set_defaults(dtype="float32")
    performance = parser.add_argument_group("Performance")
    performance.add_argument("--threads", type=int, metavar="N", help=THREADS_HELP)
    if dtype:
        performance.add_argument(
            "--dtype",
            choices=("float32", "float64"),
            help="Data type of the computation (default: float32)",
        )
    return performance


def load_model(args: argparse.Namespace) -> "tuple[LanguageModel, list[str]]":
    """Load the model that --model, --threads, --dtype and --draft (if declared) specify.

    Returns the model and the messages to print: the model's name, then warnings.
    """
    set_threads(args.threads)
    from gpt2np.language_model import LanguageModel

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        draft, processes = getattr(args, "draft", None), thread_count()
        lm = LanguageModel.load(args.model, args.dtype, draft, processes)
    reason = lm.fallback_reason
    suffix = f" ({reason}; choose another with --model)" if reason else ""
    # The fallback reason is one of the warnings, but the first line already has it.
    messages = [str(warning.message) for warning in caught]
    return lm, [
        f"model: {lm.name}{suffix}",
        *(m for m in messages if not reason or reason not in m),
    ]
