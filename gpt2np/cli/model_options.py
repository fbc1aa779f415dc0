"""Options for the model, its dtype and threads; loading of a model or tokenizer."""

import argparse
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.threads import set_threads

if TYPE_CHECKING:
    from gpt2np.distributed.jobs import ModelArguments
    from gpt2np.distributed.workers import Cluster
    from gpt2np.language_model import LanguageModel
    from gpt2np.tokenizer import Tokenizer

MODEL_HELP = "Hugging Face model ID, ID@REVISION, model folder, or 'bundled'"
DEFAULT_MODEL_HELP = (
    "default: $GPT2NP_MODEL if set, else openai-community/gpt2 if available, else 'bundled'"
)
THREADS_HELP = "Maximum number of CPU cores to use (default: all)"
WEIGHTS_HELP = (
    "Quantize the matrices to 8 bits: a quarter of the memory, slightly different results"
)
PROCESSES_HELP = (
    "Number of processes that share each forward pass; auto measures which number is fastest, up "
    "to the number of CPU cores (default: auto)"
)


def add_model_arguments(
    parser: argparse.ArgumentParser, *, dtype: bool = True, multiple: bool = False
) -> "argparse._ArgumentGroup":
    """Declare --model, --tokenizer, --threads and --weights; --dtype if the parameter is true.

    A command without --dtype computes in float32. With `multiple`, --model can be repeated. Returns
    the argument group "Performance".
    """
    model, action = f"{MODEL_HELP} ({DEFAULT_MODEL_HELP})", "append" if multiple else "store"
    model += "; repeatable" if multiple else ""
    parser.add_argument("--model", action=action, metavar="MODEL", help=model)
    tokenizer = "Vocabulary, if not the model's own: a file, or a model as in --model"
    parser.add_argument("--tokenizer", metavar="MODEL", help=tokenizer)
    parser.set_defaults(dtype="float32")
    performance = parser.add_argument_group("Performance")
    performance.add_argument("--threads", type=int, metavar="N", help=THREADS_HELP)
    if dtype:
        dtype_help = "Data type of the computation (default: float32)"
        performance.add_argument("--dtype", choices=("float32", "float64"), help=dtype_help)
    performance.add_argument("--weights", choices=("int8",), help=WEIGHTS_HELP)
    return performance


def load_model(args: argparse.Namespace) -> "tuple[LanguageModel, list[str]]":
    """Load the model that the options for models and --draft specify.

    Returns the model and the messages to print: the model's name, then warnings.
    """
    set_threads(args.threads)
    from gpt2np.language_model import LanguageModel

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        draft = getattr(args, "draft", None) or "auto"
        processes = getattr(args, "processes", 1)
        lm = LanguageModel.load(
            args.model, args.dtype, draft, processes, args.tokenizer, args.weights
        )
    reason, messages = lm.fallback_reason, [str(warning.message) for warning in caught]
    # The fallback reason is also a warning; the first message already contains it.
    other_messages = (message for message in messages if not reason or reason not in message)
    return lm, [source_message("model", lm.name, reason), *other_messages]


def add_processes_argument(add: Callable[..., object]) -> None:
    """Declare --processes."""
    add("--processes", type=_processes, default="auto", metavar="N|auto", help=PROCESSES_HELP)


def _processes(text: str) -> int | str:
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor a number from 1 on")
    return text if text == "auto" else int(text)


def load_with_fingerprint(args: argparse.Namespace) -> "tuple[LanguageModel, str]":
    """Load the model and print its messages. Returns the model and a digest of its files."""
    from gpt2np.cli.output import print_stderr
    from gpt2np.data.resumable import input_digests
    from gpt2np.hub.model_files import COMPANIONS, list_weight_files

    lm, messages = load_model(args)
    for message in messages:
        print_stderr(message)
    assert lm.folder is not None
    patterns = ("config.json", *list_weight_files(lm.folder), *COMPANIONS)
    files = {file for pattern in patterns for file in lm.folder.glob(pattern)}
    vocabulary = lm.tokenizer.fingerprint if args.tokenizer else ""
    return lm, vocabulary + input_digests(sorted(files))[-1]


def model_source(args: argparse.Namespace, lm: "LanguageModel") -> "ModelArguments":
    """Return what the workers of a cluster need to load the model `lm`, which `args` specify."""
    from gpt2np.distributed.jobs import ModelArguments, language_model_fingerprint

    fingerprint = language_model_fingerprint(lm)
    return ModelArguments(args.model, args.dtype, args.tokenizer, args.weights, fingerprint)


def add_max_rows_argument(add: Callable[..., object]) -> None:
    """Declare --max-rows-per-file."""
    rows = "Make the output a folder: files of N rows each, and a manifest (default: one file)"
    add("--max-rows-per-file", type=int, metavar="N", help=rows)


def add_ray_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a job that can run on a Ray cluster."""
    add = parser.add_argument_group("Ray").add_argument
    ray = (
        "Run on a Ray cluster: ADDRESS, or $RAY_ADDRESS, or the one on this machine, or else a new "
        "one"
    )
    add("--ray", nargs="?", const="", metavar="ADDRESS", help=ray)
    workers = "Workers, each with the model (default: as many as the cluster has CPUs for)"
    add("--workers", type=int, metavar="N", help=workers)
    add("--cpus-per-worker", type=int, metavar="K", help="CPUs of each worker (default: 1)")


def ray_cluster(args: argparse.Namespace) -> "Cluster | None":
    """Return the cluster of --ray, --workers and --cpus-per-worker; None without --ray.

    Raises:
        InvalidArgumentError: an option is invalid, or has no effect without --ray.
    """
    if args.ray is None:
        for name in ("workers", "cpus_per_worker"):
            if getattr(args, name) is not None:
                raise InvalidArgumentError(f"--{name.replace('_', '-')} needs --ray")
        return None
    from gpt2np.distributed.workers import Cluster

    n_cpus = Cluster.cpus_per_worker if args.cpus_per_worker is None else args.cpus_per_worker
    cluster = Cluster(args.ray or None, args.workers, n_cpus)
    cluster.connect()
    return cluster


def source_message(kind: str, name: str, fallback_reason: str | None) -> str:
    """Return a message with the name of a model or vocabulary, and the reason for a fallback."""
    suffix = f" ({fallback_reason}; choose another with --model)" if fallback_reason else ""
    return f"{kind}: {name}{suffix}"


def add_model_or_option(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Declare MODEL, and --model as in other commands; `model_argument` reads both."""
    parser.add_argument("positional_model", nargs="?", metavar="MODEL", help=help_text)
    parser.add_argument("--model", metavar="MODEL", help="The same as the argument MODEL")


def model_argument(args: argparse.Namespace, *, required: bool = False) -> str | None:
    """Return the argument MODEL, or else the value of the option --model.

    Raises:
        InvalidArgumentError: both are given, or neither although `required`.
    """
    given = [model for model in (args.positional_model, args.model) if model is not None]
    if len(given) > 1:
        raise InvalidArgumentError("give either MODEL or --model, not both")
    if required and not given:
        raise InvalidArgumentError("no model; give MODEL, for example bundled")
    return given[0] if given else None


def add_vocabulary_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --model for a command that needs a vocabulary but no weights."""
    parser.add_argument(
        "--model",
        "--tokenizer",
        metavar="MODEL",
        help="Vocabulary file (tokenizer.json or .tiktoken), or model whose vocabulary to use: "
        f"{MODEL_HELP} ({DEFAULT_MODEL_HELP})",
    )


def load_tokenizer(model: str | None) -> "tuple[Tokenizer, str]":
    """Load the tokenizer of `model`. Returns the tokenizer and a message that names its source."""
    from gpt2np.hub import find_vocabulary
    from gpt2np.tokenizer import Tokenizer

    source = find_vocabulary(model)
    message = source_message("vocabulary", source.name, source.fallback_reason)
    return Tokenizer.load(source.path), message
