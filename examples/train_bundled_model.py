"""Train a model of the bundled model's shape, in NumPy: a small GPT-2 on children's stories.

    python examples/train_bundled_model.py --stories DIR --work build/bundled

DIR contains `train.txt` and `valid.txt`, documents separated by `<|endoftext|>`. The work folder
gets the vocabulary, the token ids and the model. The program runs four commands of gpt2np, prints
each, and can be run again after an interruption.

Recipe: byte-level BPE, 4,096 tokens trained on the stories; 6 blocks, 4 heads, 256 channels, 512
positions; AdamW with a warm-up and a cosine schedule, steps of 8 × 512 tokens. The weights that
gpt2np ships were trained by an earlier version of this program, with PyTorch (weights/README.md).
"""

import argparse
import sys
from pathlib import Path

from gpt2np.cli.main import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--stories", type=Path, required=True, help="folder with train.txt and valid.txt"
    )
    parser.add_argument("--work", type=Path, default=Path("build/bundled"), help="work folder")
    parser.add_argument("--max-steps", type=int, default=9_000, help="38 million tokens by default")
    parser.add_argument("--vocab-size", type=int, default=4096)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    vocabulary, train, valid, model = (
        args.work / name for name in ("vocabulary", "train.bin", "valid.bin", "model")
    )
    texts = {name: f"{args.stories / name}.txt" for name in ("train", "valid")}
    vocabulary_option = ["--model", f"{vocabulary}"]
    commands = {
        vocabulary: ["train-tokenizer", texts["train"], "--vocab-size", f"{args.vocab_size}",
                     "--out", f"{vocabulary}"],
        train: ["encode", texts["train"], f"{train}", *vocabulary_option],
        valid: ["encode", texts["valid"], f"{valid}", *vocabulary_option],
        model: ["train", f"{train}", f"{model}", *vocabulary_option, "--eval-corpus", f"{valid}",
                "--max-steps", f"{args.max_steps}"],
    }  # fmt: skip
    for out, command in commands.items():
        if not out.exists():
            print("gpt2np", *command, file=sys.stderr)
            if code := run(command):
                return code
    return run(["eval", "perplexity", texts["valid"], "--model", f"{model}"])


if __name__ == "__main__":
    sys.exit(main())
