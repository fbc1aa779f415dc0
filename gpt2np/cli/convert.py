"""Change the dtype of a model's weights.

SRC must contain safetensors files. The new folder DST works with gpt2np and
transformers: tensors have the names and the layout of GPT2LMHeadModel. The
vocabulary, the model card and the generation config are copied. All files are
first written to a temporary folder; then the folder is renamed to DST.
"""

import argparse
from pathlib import Path

from gpt2np.progress import progress_bar
from gpt2np.runtime.options import MODEL_HELP

DTYPES = ("float32", "float16", "bfloat16", "float64")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", metavar="SRC", help=MODEL_HELP)
    add("target", type=Path, metavar="DST", help="Folder to write; must be new or empty")
    dtype = "Data type of the stored weights (default: dtype of the token embedding in SRC)"
    parser.add_argument_group("Output").add_argument("--dtype", choices=DTYPES, help=dtype)


def run(args: argparse.Namespace) -> int:
    from gpt2np.checkpoint.convert import check_new_folder, convert

    check_new_folder(args.target)
    from gpt2np.checkpoint.load import read_checkpoint
    from gpt2np.hub import find_model

    checkpoint = read_checkpoint(find_model(args.source).path)
    with progress_bar(checkpoint.n_parameters, "converting", "parameter") as bar:
        convert(checkpoint, args.target, dtype=args.dtype, on_progress=bar.update)
    print(args.target)
    return 0
