"""Train the bundled model: a small GPT-2 on public-domain children's stories.

    pip install ".[train]"
    python examples/train_bundled_model.py --stories DIR --work build/bundled --hours 4

DIR contains `train.txt` and `valid.txt`, documents separated by `<|endoftext|>`. The work folder
stores the vocabulary and a checkpoint, saved every few minutes; the same command resumes from the
checkpoint. The learning rate depends on the time spent training instead of the number of steps, so
the schedule ends after `--hours` on a busy machine, too. At the end (at any time with
`--export-only`), the model is written to `--out`, a folder for gpt2np and `transformers`.

To train on other texts, use `gpt2np train`. This program has the same model, optimizers and
learning rate, from gpt2np.training; in addition, it stacks layers and lengthens the windows.

Recipe: byte-level BPE like GPT-2's, 4,096 tokens trained on the stories; GPT2LMHeadModel of
`transformers`; Muon (Jordan 2024; torch.optim.Muon) for the matrices inside the blocks and AdamW
for embeddings, biases and layer norms; a short warm-up, a plateau, then a linear decay to zero;
gradients clipped at 1; bfloat16 autocast; torch.compile. Runs on a GPU if available, else on the
CPU.
"""

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from tqdm import tqdm
from transformers import GPT2LMHeadModel

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.data.files import atomic_path
from gpt2np.training import trainer
from gpt2np.training.trainer import DEVICE

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 4096
EOS = VOCAB_SIZE - 1  # id of END_OF_TEXT
CONTEXT = 512
CHECKPOINT_SECONDS = 180


Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Stage:
    """A stage of training; a small model on short windows learns faster at first."""

    until: float  # end of the stage as a share of the training time
    layers: int
    window: int  # tokens


STAGES = (Stage(0.15, 2, 128), Stage(0.6, 6, 256), Stage(1.0, 6, CONTEXT))


# --- text to ids ----------------------------------------------------------------------------------


def read_documents(path: Path) -> list[str]:
    parts = path.read_text(encoding="utf-8").split(END_OF_TEXT)
    return [document for part in parts if (document := part.strip("\n"))]


def learn_vocabulary(documents: list[str], folder: Path) -> None:
    """Train byte-pair merges and write GPT-2's two files; end-of-text gets the last id."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe_trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE - 1, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(documents, bpe_trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    merges = [" ".join(pair) for pair in learned["merges"]]
    vocab = learned["vocab"] | {END_OF_TEXT: VOCAB_SIZE - 1}
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    text = "\n".join(["#version: 0.2", *merges, ""])
    (folder / "merges.txt").write_text(text, encoding="utf-8")


def load_tokenizer(folder: Path) -> Tokenizer:
    model = models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> list[Ids]:
    """Return the ids of each document, after an end-of-text token."""
    encodings = tokenizer.encode_batch(documents)
    return [np.array([VOCAB_SIZE - 1, *encoding.ids], np.int64) for encoding in encodings]


def training_rows(documents: list[Ids], window: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Yield (batch, window + 1) rows of ids forever; every epoch shuffles the documents."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(documents))
        stream = np.concatenate([documents[i] for i in order])[rng.integers(window) :]
        count = (len(stream) - 1) // window
        rows = np.stack([stream[i * window : (i + 1) * window + 1] for i in range(count)])
        rng.shuffle(rows)
        for start in range(0, count - batch + 1, batch):
            yield torch.from_numpy(rows[start : start + batch]).to(DEVICE)


# --- model ----------------------------------------------------------------------------------------


def new_model(args: argparse.Namespace, layers: int) -> GPT2LMHeadModel:
    return trainer.new_model(
        GPT2Config(VOCAB_SIZE, CONTEXT, args.width, layers, args.heads, eos_token_ids=(EOS,))
    )


def stack_layers(small: GPT2LMHeadModel, args: argparse.Namespace, layers: int) -> GPT2LMHeadModel:
    """Build a deeper model whose blocks are copies of the small one's (Du et al. 2024, G_stack)."""
    model = new_model(args, layers)
    content = small.state_dict()
    for layer in range(layers):
        copied = small.transformer.h[layer % small.config.n_layer].state_dict()
        content |= {f"transformer.h.{layer}.{name}": value for name, value in copied.items()}
    model.load_state_dict(content)
    return model


# --- evaluation -----------------------------------------------------------------------------------


@torch.no_grad()
def total_bits(model: GPT2LMHeadModel, documents: list[Ids]) -> float:
    """Return the bits of all documents in float32: a full window, then windows moved on by half.

    Documents are evaluated separately; each ends with end-of-text, whose bits are included.
    """
    nats = 0.0
    for document in tqdm(documents, desc="valid", disable=None):
        ids = torch.from_numpy(np.append(document, VOCAB_SIZE - 1)).to(DEVICE)
        done = 1
        while done < len(ids):
            stop = min(len(ids), CONTEXT + 1 if done == 1 else done + CONTEXT // 2)
            start = max(0, stop - CONTEXT - 1)
            logits = model(ids[None, start : stop - 1]).logits[0, done - stop :]
            nats += cross_entropy(logits.double(), ids[done:stop], reduction="sum").item()
            done = stop
    return nats / math.log(2)


# --- training -------------------------------------------------------------------------------------


def save_checkpoint(
    path: Path, model: GPT2LMHeadModel, optimizers: list[Optimizer], state: dict[str, float]
) -> None:
    content = {"model": model.state_dict(), "layers": model.config.n_layer, "state": state}
    content["optimizers"] = [optimizer.state_dict() for optimizer in optimizers]
    with atomic_path(path) as temporary:
        torch.save(content, temporary)


def load_checkpoint(args: argparse.Namespace) -> tuple[GPT2LMHeadModel, dict[str, Any]]:
    """Return the checkpoint's model and content, or a new model if there is no checkpoint."""
    path = args.work / "checkpoint.pt"
    if not path.exists():
        return new_model(args, STAGES[0].layers), {"state": {"seconds": 0.0, "tokens": 0}}
    content = torch.load(path, map_location=DEVICE, weights_only=True)
    model = new_model(args, content["layers"])
    model.load_state_dict(content["model"])
    print(f"resuming at {content['state']['tokens'] / 1e6:.1f} M tokens", file=sys.stderr)
    return model, content


def train(args: argparse.Namespace, tokenizer: Tokenizer) -> GPT2LMHeadModel:
    documents = encode_documents(tokenizer, read_documents(args.stories / "train.txt"))
    model, content = load_checkpoint(args)
    for stage in STAGES:
        if content["state"]["seconds"] < stage.until * args.hours * 3600:
            if model.config.n_layer != stage.layers:
                model = stack_layers(model, args, stage.layers)
                content.pop("optimizers", None)
            train_stage(args, stage, model, documents, content)
    return model


def train_stage(
    args: argparse.Namespace,
    stage: Stage,
    model: GPT2LMHeadModel,
    documents: list[Ids],
    content: dict[str, Any],
) -> None:
    """Train to the end of a stage; resume from `content` and update it."""
    optimizers = trainer.new_optimizers(model, args.rate)
    for optimizer, saved in zip(optimizers, content.get("optimizers", ()), strict=False):
        optimizer.load_state_dict(saved)
    state, budget = content["state"], args.hours * 3600
    loss_of = torch.compile(trainer.mean_loss, dynamic=False)
    bar = tqdm(total=round(budget), initial=round(state["seconds"]), unit="s", disable=None)
    batches = training_rows(documents, stage.window, args.batch // stage.window, state["tokens"])
    saved_at, before, started, average = time.monotonic(), state["seconds"], None, 0.0
    for step, rows in enumerate(batches):
        rate = args.rate * trainer.rate_at(state["seconds"] / budget, step)
        loss = loss_of(model, rows, torch.randint(CONTEXT - stage.window + 1, (1,), device=DEVICE))
        trainer.update_weights(model, loss, optimizers, rate)
        started = started or time.monotonic()  # exclude compilation, in the first step
        state["seconds"] = before + time.monotonic() - started
        state["tokens"] += rows.shape[0] * stage.window
        average += (0.02 if average else 1.0) * (loss.item() - average)
        bar.set_postfix_str(f"{state['tokens'] / 1e6:.1f} M tokens, loss {average:.3f}")
        bar.update(round(state["seconds"]) - bar.n)
        over = state["seconds"] >= stage.until * budget
        if over or time.monotonic() - saved_at > CHECKPOINT_SECONDS:
            save_checkpoint(args.work / "checkpoint.pt", model, optimizers, state)
            with (args.work / "log.jsonl").open("a", encoding="utf-8") as log:
                print(json.dumps(state | {"train_loss": average, "rate": rate}), file=log)
            saved_at = time.monotonic()
        if over:
            content["optimizers"] = [optimizer.state_dict() for optimizer in optimizers]
            return


def export(args: argparse.Namespace, model: GPT2LMHeadModel, tokenizer: Tokenizer) -> None:
    """Write the model folder, then evaluate its rounded weights."""
    args.out.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.half().contiguous().cpu() for k, v in model.transformer.state_dict().items()}
    with atomic_path(args.out / "model.safetensors") as temporary:
        save_file(tensors, temporary, {"format": "pt"})
    for name in ("vocab.json", "merges.txt"):
        shutil.copyfile(args.work / name, args.out / name)
    config = model.config.to_diff_dict() | {"vocab_size": VOCAB_SIZE, "use_cache": True}
    config |= {"architectures": ["GPT2LMHeadModel"], "dtype": "float16"}
    config.pop("transformers_version", None)
    generation = {"do_sample": True, "temperature": 0.8, "top_k": 40}
    generation |= {"bos_token_id": VOCAB_SIZE - 1, "eos_token_id": VOCAB_SIZE - 1}
    tokenizer_config = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": CONTEXT}
    tokenizer_config |= {f"{role}_token": END_OF_TEXT for role in ("bos", "eos", "unk")}
    for name, content in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer_config.json", tokenizer_config),
    ):
        (args.out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    model.transformer.load_state_dict({k: v.float() for k, v in tensors.items()})
    texts = read_documents(args.stories / "valid.txt")
    documents, characters = encode_documents(tokenizer, texts), sum(map(len, texts))
    print(f"held-out bits per character: {total_bits(model, documents) / characters:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--stories", type=Path, required=True, help="folder with train.txt and valid.txt"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("build/bundled"),
        help="folder for the vocabulary and the checkpoint",
    )
    parser.add_argument("--out", type=Path, default=Path("weights"), help="output folder")
    parser.add_argument("--hours", type=float, default=4.0, help="total training time")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4096, help="tokens per step")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--export-only", action="store_true", help="export the last checkpoint")
    args = parser.parse_args()

    if args.export_only and not (args.work / "checkpoint.pt").exists():
        parser.error(f"no checkpoint in {args.work}; train first")
    torch.manual_seed(0)
    args.work.mkdir(parents=True, exist_ok=True)
    if not (args.work / "merges.txt").exists():
        learn_vocabulary(read_documents(args.stories / "train.txt"), args.work)
    tokenizer = load_tokenizer(args.work)
    model = load_checkpoint(args)[0] if args.export_only else train(args, tokenizer)
    export(args, model.eval(), tokenizer)


if __name__ == "__main__":
    main()
