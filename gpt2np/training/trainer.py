"""Training steps, with PyTorch and `transformers`' GPT2LMHeadModel.

Muon (Jordan 2024; torch.optim.Muon) trains the matrices inside the blocks, and AdamW the
embeddings, biases and layer norms.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from transformers import AttentionInterface, GPT2LMHeadModel

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.checkpoint.convert import write_checkpoint
from gpt2np.data.files import atomic_path
from gpt2np.data.resumable import input_digests, partial_folder, setting_changes
from gpt2np.errors import GPT2NPError, InvalidArgumentError
from gpt2np.tokenizer import Tokenizer
from gpt2np.training.options import TrainerOptions

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

_QUERY_BLOCK = 64  # queries computed at once; keys after the block are skipped


class Trainer:
    """A training run; the folder `out`.partial holds the saved state until the run ends.

    A run that is continued from its saved state gives the same weights as an uninterrupted run on
    a CPU, where PyTorch is deterministic. Step n trains on sequences that depend only on the
    seed and n.

    Attributes:
        folder: the folder of the saved state.
        step: number of steps taken.
    """

    def __init__(
        self,
        corpus: Path,
        out: Path,
        tokenizer: Tokenizer,
        options: TrainerOptions,
        *,
        force: bool = False,
    ) -> None:
        """Create a run, or load the saved state of an interrupted run.

        Args:
            corpus: the file of token ids, .bin or .npy, that `gpt2np encode` wrote.
            out: the folder to write the trained model to.
            tokenizer: the tokenizer of the corpus.
            options: the hyperparameters.
            force: discard the saved state of a run with another corpus or other options.

        Raises:
            InvalidArgumentError: the corpus is not valid or too short, or the saved state belongs
                to a run with another corpus or other options.
            GPT2NPError: the saved state is damaged.
            OSError: a file can't be read or written.
        """
        self.folder, self.step = partial_folder(out), 0
        self._out, self._tokenizer, self._options = out, tokenizer, options
        self._ids = read_corpus(corpus, tokenizer.vocab_size)
        if len(self._ids) <= options.n_positions:
            raise InvalidArgumentError(
                "{0} has {1:,} ids; training needs more than {n_positions}, {n_positions.value}",
                corpus,
                len(self._ids),
                n_positions=options.n_positions,
            )
        self._settings: dict[str, Any] = {
            **asdict(options),
            "corpus": input_digests([corpus])[-1],
            "vocabulary": tokenizer.fingerprint,
        }
        if force:
            shutil.rmtree(self.folder, ignore_errors=True)
        tokenizer.save(self.folder / "vocabulary")  # an error now, not after the training
        torch.manual_seed(options.seed)
        eos = tokenizer.eos_token_id
        self._config = GPT2Config(
            vocab_size=tokenizer.vocab_size,
            n_positions=options.n_positions,
            n_embd=options.n_embd,
            n_layer=options.n_layer,
            n_head=options.n_head,
            eos_token_ids=() if eos is None else (eos,),
        )
        self._model = new_model(self._config)
        self._optimizers = new_optimizers(self._model, options.learning_rate, options.weight_decay)
        self._loss_of: Callable[..., Tensor] = mean_loss
        if options.torch_compile:
            self._loss_of = torch.compile(mean_loss, dynamic=False)
        if self._state_file.exists():
            self._load()

    @property
    def _state_file(self) -> Path:
        return self.folder / "state.pt"

    def take_step(self) -> float:
        """Take one training step. Returns the loss before the step, in nats per token."""
        options = self._options
        rows = torch.from_numpy(draw_sequences(self._ids, self.step, options)).to(DEVICE)
        loss = self._loss_of(self._model, rows, torch.zeros(1, device=DEVICE).long(), options.bf16)
        factor = rate_at(self.step / options.max_steps, self.step, options.warmup_steps)
        rate = options.learning_rate * factor
        update_weights(self._model, loss, self._optimizers, rate, options.max_grad_norm)
        self.step += 1
        return loss.item()

    def save(self) -> None:
        """Save the state of the training, to continue the run later."""
        state = {
            "settings": self._settings,
            "step": self.step,
            "model": self._model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }
        with atomic_path(self._state_file) as temporary:
            torch.save(state, temporary)

    def _load(self) -> None:
        try:
            state = torch.load(self._state_file, map_location=DEVICE, weights_only=True)
            saved = state["settings"]
        except Exception as error:  # PyTorch raises many types
            reason = type(error).__name__
            raise GPT2NPError(
                "{0} is damaged ({1}); give {force.setting} to start over",
                self._state_file,
                reason,
                force=True,
            ) from error
        files = [name for name in ("corpus", "vocabulary") if saved[name] != self._settings[name]]
        changes = [f"the {name} has changed" for name in files]
        changes += setting_changes(saved, self._settings, harmless=("corpus", "vocabulary"))
        if changes:
            message = (
                f"{{0}} has {{1}} steps of a training with other options: {'; '.join(changes)}"
            )
            message += "; undo the change to go on, or give {force.setting} to start over"
            names = {**saved, **self._settings}
            raise InvalidArgumentError(message, self.folder, state["step"], force=True, **names)
        self.step = state["step"]
        self._model.load_state_dict(state["model"])
        for optimizer, content in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(content)

    def finish(self) -> None:
        """Write the model and its vocabulary to the folder `out`, and remove the saved state."""
        model = self.folder / "model"
        shutil.rmtree(model, ignore_errors=True)
        tensors = self._model.transformer.state_dict()
        weights = {name: tensor.float().cpu().numpy() for name, tensor in tensors.items()}
        write_checkpoint(self._config, weights, model)
        for file in (self.folder / "vocabulary").iterdir():
            shutil.copyfile(file, model / file.name)
        if self._out.is_dir():  # an empty folder
            self._out.rmdir()
        model.rename(self._out)
        shutil.rmtree(self.folder)


def read_corpus(path: Path, vocab_size: int) -> NDArray[Any]:
    """Map a file of token ids, .bin or .npy, into memory, and check the ids.

    Raises:
        InvalidArgumentError: the file is not a corpus, or has ids that are not in the vocabulary.
        OSError: the file can't be read.
    """
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    try:
        ids: NDArray[Any]
        if path.suffix == ".npy":
            ids = np.load(path, mmap_mode="r", allow_pickle=False)
        elif path.suffix == ".bin":
            ids = np.memmap(path, dtype, "r")
        else:
            raise ValueError("its name ends in neither .bin nor .npy")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise ValueError(f"it has numbers {ids.dtype} {ids.shape}, not a list of integers")
    except ValueError as error:
        raise InvalidArgumentError(f"{path} is not a corpus from gpt2np encode: {error}") from error
    if not 0 <= ids.min() <= ids.max() < vocab_size:
        raise InvalidArgumentError(
            f"{path} has ids up to {ids.max()}, but the vocabulary has {vocab_size}; choose the "
            f"vocabulary that the corpus was encoded with"
        )
    return ids


def draw_sequences(ids: NDArray[Any], step: int, options: TrainerOptions) -> NDArray[np.int64]:
    """Draw the training sequences of a step. Returns (batch, n_positions + 1) token ids."""
    rng = np.random.default_rng([options.seed, step])
    starts = rng.integers(
        0, len(ids) - options.n_positions, options.per_device_train_batch_size
    ).tolist()
    rows = [ids[start : start + options.n_positions + 1] for start in starts]
    return np.stack(rows).astype(np.int64)


def causal_block_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object
) -> tuple[Tensor, None]:
    """Causal attention in blocks of queries: twice as fast as PyTorch's on a CPU."""
    outputs = []
    for start in range(0, query.shape[2], _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, query.shape[2])
        scores = (query[:, :, start:stop] * query.shape[-1] ** -0.5) @ key[:, :, :stop].mT
        future = torch.arange(stop) > torch.arange(start, stop)[:, None]
        pattern = scores.float().masked_fill(future, -torch.inf).softmax(-1)
        outputs.append(pattern.to(query.dtype) @ value[:, :, :stop])
    return torch.cat(outputs, 2).transpose(1, 2), None


def new_model(config: GPT2Config) -> GPT2LMHeadModel:
    """Return a model with random weights and without dropout."""
    eos = config.eos_token_ids[0] if config.eos_token_ids else None
    theirs = transformers.GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.n_positions,
        n_embd=config.n_embd,
        n_layer=config.n_layer,
        n_head=config.n_head,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=eos,
        eos_token_id=eos,
        use_cache=False,
    )
    AttentionInterface.register("causal_block", causal_block_attention)
    theirs._attn_implementation = "sdpa" if DEVICE == "cuda" else "causal_block"
    model = GPT2LMHeadModel(theirs)
    nn.Module.to(model, DEVICE)
    return model


def mean_loss(
    model: GPT2LMHeadModel, rows: Tensor, first_position: Tensor, bf16: bool = True
) -> Tensor:
    """Return the mean loss of rows[:, 1:] in nats; positions count from `first_position`."""
    positions = first_position + torch.arange(rows.shape[1] - 1, device=DEVICE)[None]
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=bf16):
        hidden = model.transformer(rows[:, :-1], position_ids=positions).last_hidden_state
        logits = model.lm_head(hidden)
    return cross_entropy(logits.view(-1, logits.shape[-1]).float(), rows[:, 1:].reshape(-1))


def new_optimizers(
    model: GPT2LMHeadModel, rate: float, weight_decay: float = 0.1
) -> list[Optimizer]:
    """Return Muon for the matrices inside the blocks, and AdamW for the other parameters."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and ".h." in name]
    rest = [p for name, p in named if not (p.ndim == 2 and ".h." in name)]
    adjust = "match_rms_adamw"
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=weight_decay, adjust_lr_fn=adjust),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def rate_at(progress: float, step: int, warmup_steps: int = 100, decay: float = 0.6) -> float:
    """Return the learning rate at `step`, as a share of the peak learning rate.

    The rate rises for `warmup_steps` steps, and falls to 0 in the last share `decay` of the
    training. `progress` is the share of the training that is done.
    """
    return min(1.0, (step + 1) / max(1, warmup_steps), (1.0 - progress) / decay)


def update_weights(
    model: GPT2LMHeadModel,
    loss: Tensor,
    optimizers: list[Optimizer],
    rate: float,
    max_grad_norm: float = 1.0,
) -> None:
    """Clip the gradients of `loss`, and take an optimizer step with learning rate `rate`."""
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
