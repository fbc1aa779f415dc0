"""`gpt2np train`: a tiny model, interrupted and not, and its checkpoint in transformers."""

import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.paths import CHECKOUT
from transformers import AutoModelForCausalLM

import gpt2np
from gpt2np.cli.main import run

STORY = CHECKOUT / "examples/walkthrough/texts/the_fox_and_the_bell.txt"
TINY = "--n-layer 2 --n-head 2 --n-embd 32 --n-positions 32 --per-device-train-batch-size 4"
OPTIONS = [*TINY.split(), "--max-steps", "40", "--warmup-steps", "5", "--logging-steps", "10"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    assert run(["encode", str(STORY), f"{folder}/c.bin", "--model", "bundled"]) == 0
    return folder / "c.bin"


def train(corpus, out, *options, model="bundled"):
    return run(["train", str(corpus), str(out), "--model", model, *OPTIONS, *options])


@pytest.fixture(scope="module")
def trained(corpus):
    out = corpus.parent / "trained"
    assert train(corpus, out) == 0
    return out


def test_loss_falls(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path / "m") == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'm'}\n"
    losses = [float(line.split()[-1]) for line in output.err.splitlines() if "loss" in line]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 1


def test_transformers_loads_the_model(trained):
    lm = gpt2np.load(trained)
    ids = lm.tokenizer.encode("The fox and the bell")
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(trained)(torch.tensor([ids])).logits[0]
    np.testing.assert_allclose(lm.model.forward([ids]), expected, atol=1e-4)
    assert lm.generate("The fox", max_new_tokens=5, seed=1).ids
    assert lm.eos_token_ids == {lm.tokenizer.eos_token_id}


def test_interrupted_training_gives_the_same_model(trained, corpus, tmp_path, monkeypatch, capsys):
    from gpt2np.training.trainer import Trainer

    take_step = Trainer.take_step

    def interrupt(trainer):
        if trainer.step == 14:
            signal.raise_signal(signal.SIGINT)
        return take_step(trainer)

    monkeypatch.setattr(Trainer, "take_step", interrupt)
    out = tmp_path / "m"
    assert train(corpus, out) == 130
    assert "run the same command again to resume" in capsys.readouterr().err
    monkeypatch.undo()
    assert train(corpus, out, "--n-layer", "1") == 2
    error = capsys.readouterr().err
    assert "15 steps of a training with other options: --n-layer was 2, is 1" in error
    assert "--force" in error
    assert train(corpus, out) == 0
    assert "resuming at step 15 of 40" in capsys.readouterr().err
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (out / name).read_bytes() == (trained / name).read_bytes()
    assert not out.with_name("m.partial").exists()


def test_force_starts_over(corpus, tmp_path, capsys):
    partial = tmp_path / "m.partial"
    partial.mkdir()
    (partial / "state.pt").write_bytes(b"damaged")
    assert train(corpus, tmp_path / "m", "--max-steps", "1") == 1
    assert "state.pt is damaged" in capsys.readouterr().err
    assert train(corpus, tmp_path / "m", "--max-steps", "1", "--force") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-embd", "33"], "--n-embd is 33; it must be a multiple of --n-head, 2"),
        (["--max-steps", "0"], "--max-steps is 0; it must be an integer, at least 1"),
        (["--learning-rate", "nan"], "--learning-rate is nan"),
        (["--save-steps", "0"], "--save-steps is 0; it must be at least 1"),
        (["--n-positions", "100000"], "ids; training needs more than --n-positions, 100000"),
    ],
)
def test_wrong_options(corpus, tmp_path, capsys, options, message):
    assert train(corpus, tmp_path / "m", *options) == 2
    assert message in capsys.readouterr().err


def test_wrong_files(corpus, tmp_path, capsys):
    assert train(corpus, corpus.parent) == 2
    assert "already exists" in capsys.readouterr().err
    assert train(STORY, tmp_path / "m") == 2
    assert "is not a corpus from gpt2np encode" in capsys.readouterr().err
    foreign = tmp_path / "foreign.npy"
    np.save(foreign, np.full(1000, 5000))
    assert train(foreign, tmp_path / "m") == 2
    assert "has ids up to 5000, but the vocabulary has 4096" in capsys.readouterr().err


def test_without_torch(tmp_path):
    program = "import sys; sys.modules['torch'] = None; from gpt2np.cli.main import run; "
    program += "sys.exit(run(['train', *sys.argv[1:]]))"
    command = [sys.executable, "-c", program]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0
    assert "--per-device-train-batch-size N" in shown.stdout
    failed = subprocess.run(
        [*command, "c.bin", f"{tmp_path}/m"], capture_output=True, text=True, timeout=60
    )
    assert failed.returncode == 1
    assert "training needs the package torch; run: pip install 'gpt2np[train]'" in failed.stderr
