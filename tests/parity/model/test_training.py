"""Training in NumPy against torch: the optimizer, losses of steps."""

import io

import numpy as np
import pytest
from helpers.peers import torch
from helpers.random_models import random_model
from helpers.transformers_pass import transformers_model

from gpt2np import Tokenizer
from gpt2np.model import GPT2
from gpt2np.training.adamw import learning_rate
from gpt2np.training.options import TrainerOptions
from gpt2np.training.teach import read_request, request_bytes, teach
from gpt2np.training.trainer import Trainer, draw_sequences

BUNDLED = {"n_layer": 6, "n_head": 4, "n_embd": 256, "n_positions": 512}


def torch_losses(config, weights, ids, options, length):
    """Train with torch.optim.AdamW from the same weights on the same sequences."""
    model = transformers_model(GPT2(config, weights))
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for step in range(options.max_steps):
        size = options.per_device_train_batch_size
        rows = torch.tensor(draw_sequences(ids, size, length, [options.seed, step]))
        logits = model(rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def text_ids(count, vocab_size):
    """Return ids with a Zipf distribution, so that there is something to learn."""
    return np.minimum(np.random.default_rng(0).zipf(1.3, count), vocab_size - 1)


@pytest.mark.parametrize(
    "shape",
    [
        {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 64, "learning_rate": 3e-3},
        pytest.param(BUNDLED, marks=pytest.mark.slow),
    ],
    ids=["small", "bundled recipe"],
)
def test_six_steps(tmp_path, shape):
    options = TrainerOptions(**shape, max_steps=6, warmup_steps=2)
    corpus = tmp_path / "c.npy"
    np.save(corpus, text_ids(20_000, 4096))
    trainer = Trainer(corpus, tmp_path, Tokenizer.load("weights"), options)
    start = {name: array.copy() for name, array in trainer.weights.items()}
    found = [trainer.take_step() for _ in range(options.max_steps)]
    expected = torch_losses(trainer._config, start, np.load(corpus), options, options.n_positions)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert found[-1] < found[0] - 0.2


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_step_of_fine_tuning_or_teaching_changes_every_weight(tmp_path, order):
    model = random_model(n_layer=1, n_head=2, n_embd=16, n_positions=32, vocab_size=4096)
    arrays = {name: np.array(array, order=order) for name, array in model.weights.items()}
    model, ids = GPT2(model.config, arrays), text_ids(200, 4096)
    np.save(tmp_path / "c.npy", ids)
    tokenizer, options = Tokenizer.load("weights"), TrainerOptions(max_steps=10, warmup_steps=0)
    trainer = Trainer(tmp_path / "c.npy", tmp_path, tokenizer, options, model=model)
    trainer.take_step()
    request = request_bytes(model.config, model.weights, ids.tolist())
    config, taught, ids = read_request(io.BytesIO(request))
    steps = teach(config, taught, ids)
    next(steps)
    next(steps)
    for name, array in model.weights.items():
        assert not np.array_equal(trainer.weights[name], array), name
        assert not np.array_equal(taught[name], array), name
