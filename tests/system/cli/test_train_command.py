"""`gpt2np train`: a tiny model, interrupted and not, and its checkpoint in transformers."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from helpers.paths import CHECKOUT
from transformers import AutoModelForCausalLM

import gpt2np
from gpt2np.cli.main import run

STORY = CHECKOUT / "examples/walkthrough/texts/the_fox_and_the_bell.txt"
TINY = "--n-layer 2 --n-head 2 --n-embd 32 --n-positions 32 --per-device-train-batch-size 4"
OPTIONS = [
    *TINY.split(),
    "--max-steps",
    "40",
    "--learning-rate",
    "3e-3",
    "--warmup-steps",
    "5",
    "--logging-steps",
    "10",
]


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
    with pytest.raises(SystemExit, match="130"):
        train(corpus, out)
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
    (partial / "state.npz").write_bytes(b"damaged")
    assert train(corpus, tmp_path / "m", "--max-steps", "1") == 1
    assert "state.npz is damaged" in capsys.readouterr().err
    assert train(corpus, tmp_path / "m", "--max-steps", "1", "--force") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n-embd", "33"], "--n-embd is 33; it must be a multiple of --n-head, 2"),
        (["--max-steps", "0"], "--max-steps is 0; it must be an integer, at least 1"),
        (["--learning-rate", "nan"], "--learning-rate is nan"),
        (["--save-steps", "0"], "--save-steps is 0; it must be at least 1"),
        (["--n-positions", "100000"], "ids; sequences of 100,000 tokens need more"),
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


def test_fine_tuning_keeps_the_best_weights(corpus, tmp_path, capsys):
    """The bundled model learns a text; the kept weights are those of the best evaluation."""
    options = "--block-size 64 --per-device-train-batch-size 2 --max-steps 30 --warmup-steps 2"
    options += " --learning-rate 3e-4 --eval-steps 10 --early-stopping-patience 1"
    out = tmp_path / "tuned"
    arguments = ["train", str(corpus), str(out), "--from", "bundled", *options.split()]
    assert run([*arguments, "--eval-corpus", str(corpus)]) == 0
    lines = capsys.readouterr().err.splitlines()
    losses = [float(line.split()[-1]) for line in lines if "evaluation" in line]
    assert len(losses) == 3 and losses[-1] < losses[0]
    ids = np.fromfile(corpus, np.uint16).astype(np.int64)[:400]
    text = gpt2np.load("bundled").tokenizer.decode(ids.tolist())
    before, after = (gpt2np.load(name).score(text).perplexity for name in ("bundled", out))
    assert after < 0.7 * before
    assert (out / "loss.svg").read_text().startswith("<svg")
    assert run([*arguments[:2], f"{tmp_path}/n", *arguments[3:], "--n-layer", "2"]) == 2
    assert "--n-layer cannot be combined with --from" in capsys.readouterr().err
    assert run(["train", str(corpus), f"{tmp_path}/n", "--eval-steps", "5"]) == 2
    assert "--eval-steps has no effect without --eval-corpus" in capsys.readouterr().err


def test_early_stop(corpus, tmp_path, capsys):
    """A learning rate of 0 never improves the loss: the second evaluation ends the training."""
    options = ["--learning-rate", "0", "--eval-corpus", str(corpus), "--eval-steps", "3"]
    assert train(corpus, tmp_path / "m", *options, "--early-stopping-patience", "1") == 0
    assert "step 6: evaluation" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("moment", range(10))
def test_killed_training_gives_the_same_model(moment, corpus, tmp_path):
    """SIGKILL after any time loses only the steps since the last saved state."""
    options = [*OPTIONS, "--save-steps", "3", "--gradient-accumulation-steps", "2"]
    options += ["--resid-pdrop", "0.1", "--attn-pdrop", "0.1", "--embd-pdrop", "0.1"]

    def command(out):
        words = ["-m", "gpt2np", "train", corpus, out, "--model", "bundled", *options]
        return [sys.executable, *map(str, words)]

    whole = corpus.parent / "whole"
    if not whole.exists():
        subprocess.run(command(whole), check=True, capture_output=True, timeout=120)
    process = subprocess.Popen(command(tmp_path / "m"), stderr=subprocess.PIPE)
    state, deadline = tmp_path / "m.partial/state.npz", time.monotonic() + 60
    while not state.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.1 * moment)
    process.kill()
    process.communicate()
    if not (tmp_path / "m").exists():  # else the training was faster
        subprocess.run(command(tmp_path / "m"), check=True, capture_output=True, timeout=120)
    found = (tmp_path / "m/model.safetensors").read_bytes()
    assert found == (whole / "model.safetensors").read_bytes()


def test_a_run_within_its_warmup_is_noticed(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path / "m", "--max-steps", "2", "--warmup-steps", "2") == 0
    assert "fewer --warmup-steps" in capsys.readouterr().err
    assert train(corpus, tmp_path / "n", "--max-steps", "2", "--warmup-steps", "1") == 0
    assert "fewer --warmup-steps" not in capsys.readouterr().err
