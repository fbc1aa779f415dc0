"""`gpt2np train`: a tiny model, interrupted and not, and its checkpoint in transformers."""

import signal
import subprocess

import numpy as np
import pytest
from helpers.command_line import run_here
from helpers.kills import contents
from helpers.patched_cli import patched_cli
from helpers.paths import CHECKOUT
from helpers.peers import torch, transformers

import gpt2np
import gpt2np.training.trainer as trainer_module
from gpt2np.cli.main import run
from gpt2np.training.trainer import Trainer, read_corpus

STORY = CHECKOUT / "examples/walkthrough/texts/the_fox_and_the_bell.txt"
TINY = "--n-layer 2 --n-head 2 --n-embd 32 --n-positions 32 --per-device-train-batch-size 4"
STEPS = "--max-steps 40 --learning-rate 3e-3 --warmup-steps 5 --logging-steps 10"
OPTIONS = [*TINY.split(), *STEPS.split()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    assert run(["encode", str(STORY), f"{folder}/c.bin", "--model", "bundled"]) == 0
    return folder / "c.bin"


def train(corpus, out, *options, model="bundled"):
    return run(["train", str(corpus), str(out), "--model", model, *OPTIONS, *options])


@pytest.fixture(scope="module")
def training(corpus):
    """The result of a whole run."""
    return run_here("train", corpus, corpus.parent / "trained", "--model", "bundled", *OPTIONS)


@pytest.fixture
def trained(training):
    assert training.returncode == 0, training.stderr
    return training.args[2]


def test_loss_falls(training, trained):
    assert training.stdout == f"{trained}\n"
    losses = [float(line.split()[-1]) for line in training.stderr.splitlines() if "loss" in line]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 1


def test_transformers_loads_the_model(trained):
    lm = gpt2np.load(trained)
    ids = lm.tokenizer.encode("The fox and the bell")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(trained)
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0]
    np.testing.assert_allclose(lm.model.forward([ids]), expected, atol=1e-4)
    assert lm.generate("The fox", max_new_tokens=5, seed=1).ids
    assert lm.eos_token_ids == {lm.tokenizer.eos_token_id}


def interrupt_training(corpus, out, step):
    """Train a model, with Ctrl-C in a step."""
    take_step = Trainer.take_step

    def interrupt(trainer):
        if trainer.step == step:
            signal.raise_signal(signal.SIGINT)
        return take_step(trainer)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit, match="130"):
        patch.setattr(Trainer, "take_step", interrupt)
        train(corpus, out)


def test_interrupted_training_gives_the_same_model(trained, corpus, tmp_path, capsys):
    out = tmp_path / "m"
    interrupt_training(corpus, out, 14)
    assert "run the same command again to go on" in capsys.readouterr().err
    assert train(corpus, out, "--n-layer", "1") == 2
    error = capsys.readouterr().err
    assert "of an unfinished job, but --n-layer was 2, is 1" in error
    assert "--force" in error
    assert train(corpus, out) == 0
    assert "resuming at step 15 of 40" in capsys.readouterr().err
    assert contents(out) == contents(trained)
    assert not out.with_name("m.partial").exists()


def test_a_step_that_a_second_interrupt_cuts_off_is_taken_again(
    trained, corpus, tmp_path, monkeypatch, capsys
):
    from gpt2np.training.adamw import AdamW

    update = AdamW.update

    def interrupt(optimizer, *arguments):
        update(optimizer, *arguments)
        if optimizer.step == 15:
            optimizer.weights["ln_f.bias"] += 1  # changed in part
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(AdamW, "update", interrupt)
    with pytest.raises(SystemExit, match="130"):
        train(corpus, tmp_path / "m", "--save-steps", "10")
    monkeypatch.undo()
    assert train(corpus, tmp_path / "m") == 0
    assert "resuming at step 10 of 40" in capsys.readouterr().err
    assert contents(tmp_path / "m") == contents(trained)


def test_interrupt_in_the_last_evaluation_loses_no_step(corpus, tmp_path, monkeypatch, capsys):
    options = ("--eval-corpus", str(corpus), "--eval-steps", "15", "--max-steps", "20")
    assert train(corpus, tmp_path / "expected", *options) == 0
    tape = trainer_module.Tape

    def interrupted(*arguments, max_bytes=1, **options):  # an evaluation keeps no arrays
        return tape(*arguments, **options) if max_bytes else signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(trainer_module, "Tape", interrupted)
    for step in (15, 15):  # the evaluation of step 15 is not skipped when the run resumes
        with pytest.raises(SystemExit, match="130"):
            train(corpus, tmp_path / "m", *options)
        with np.load(tmp_path / "m.partial" / "state.npz") as file:
            assert len(file["losses"]) == step and not file["evaluations"].size
    monkeypatch.undo()
    capsys.readouterr()
    assert train(corpus, tmp_path / "m", *options) == 0
    assert "step 15: evaluation" in capsys.readouterr().err
    assert contents(tmp_path / "m") == contents(tmp_path / "expected")


def test_force_starts_over(corpus, tmp_path, capsys):
    interrupt_training(corpus, tmp_path / "m", 2)
    (tmp_path / "m.partial" / "state.npz").write_bytes(b"damaged")
    assert train(corpus, tmp_path / "m") == 1
    assert "state.npz is damaged" in capsys.readouterr().err
    assert train(corpus, tmp_path / "m", "--force", "--max-steps", "6") == 0
    assert "resuming" not in capsys.readouterr().err


def test_fine_tuning_keeps_the_best_weights(corpus, tmp_path, capsys):
    """The bundled model learns a text; the kept weights are those of the best evaluation."""
    options = "--block-size 64 --per-device-train-batch-size 2 --max-steps 6 --warmup-steps 1"
    options += " --learning-rate 1e-3 --eval-steps 2"
    out = tmp_path / "tuned"
    arguments = ["train", str(corpus), str(out), "--from", "bundled", *options.split()]
    assert run([*arguments, "--eval-corpus", str(corpus)]) == 0
    lines = capsys.readouterr().err.splitlines()
    losses = [float(line.split()[-1]) for line in lines if ": evaluation" in line]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert lines[-1].endswith(
        f"the lowest evaluation is {min(losses):.4f}: the weights of step 6 are kept"
    )
    ids = np.fromfile(corpus, np.uint16).astype(np.int64)
    text = gpt2np.load("bundled").tokenizer.decode(ids.tolist())
    before, after = (gpt2np.load(name).score(text).perplexity for name in ("bundled", out))
    assert after < 0.7 * before
    assert (out / "loss.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(("rate", "steps"), [("1e30", 3), ("3e38", 1)])
def test_a_rate_that_is_too_high_is_one_error(corpus, tmp_path, capsys, recwarn, rate, steps):
    options = ["--learning-rate", rate, "--max-steps", str(steps), "--warmup-steps", "0"]
    assert train(corpus, tmp_path / "m", *options, "--max-grad-norm", "1e30") == 1
    assert "lower the learning rate" in capsys.readouterr().err
    assert not recwarn.list and not (tmp_path / "m").exists()


def test_killed_at_the_end(trained, corpus, tmp_path, capsys):
    """A run that is killed while it writes the model writes the model again."""
    code = """
import os, gpt2np.training.trainer as trainer
write = trainer.write_checkpoint
def die(*args, **kwargs):
    write(*args, **kwargs)
    os.kill(os.getpid(), 9)
trainer.write_checkpoint = die
"""
    words = ["train", corpus, tmp_path / "m", "--model", "bundled", *OPTIONS]
    killed = subprocess.run([*patched_cli(code), *words], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "m").exists()
    assert train(corpus, tmp_path / "m") == 0
    assert "resuming at step 40 of 40" in capsys.readouterr().err
    assert contents(tmp_path / "m") == contents(trained)


def test_a_run_within_its_warmup_is_noticed(corpus, tmp_path, capsys):
    assert train(corpus, tmp_path / "m", "--max-steps", "2", "--warmup-steps", "2") == 0
    assert "fewer --warmup-steps" in capsys.readouterr().err
    assert train(corpus, tmp_path / "n", "--max-steps", "2", "--warmup-steps", "1") == 0
    assert "fewer --warmup-steps" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ids.BIN", "ids.NPY"])
def test_the_suffix_of_a_corpus_may_be_in_capitals(tmp_path, name):
    ids = np.arange(1000, dtype=np.uint16) % 300
    with (tmp_path / name).open("wb") as file:
        np.save(file, ids) if name == "ids.NPY" else file.write(ids.tobytes())
    assert read_corpus(tmp_path / name, 300, 10).tolist() == ids.tolist()
