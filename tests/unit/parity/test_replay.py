"""Receipts: the same bits on replay, and the first step that differs."""

import json
import os
import subprocess
import sys

import pytest

import gpt2np
from gpt2np.cli.main import run
from gpt2np.errors import CheckpointError, GPT2NPError, InvalidArgumentError
from gpt2np.parity import read_receipt, replay


@pytest.fixture(scope="module")
def lm():
    return gpt2np.load("bundled", exact=True)


@pytest.fixture(scope="module")
def content(lm):
    done = lm.generate("Once upon a time", seed=3, max_new_tokens=12, bad_words=("dog",))
    return json.loads(json.dumps(done.receipt(lm)))


def test_replay(lm, content):
    assert replay(content, lm) is None


@pytest.mark.parametrize(
    "options",
    [
        {"best_of": 3, "num_return_sequences": 2, "seed": 5},
        {"num_beams": 3, "num_return_sequences": 3},
        {"temperature": 0.0, "logit_bias": {262: 2.0}, "stop": ["dog"]},
        {"regex": "[a-z ]+\\.", "seed": 1, "logprobs": 2},
    ],
    ids=str,
)
def test_every_completion_has_a_receipt(lm, options):
    done = lm.generate("One day", max_new_tokens=8, **options)
    for completion in (done, *done.alternatives):
        content = json.loads(json.dumps(completion.receipt(lm)))
        assert content["ids"] == completion.ids
        assert replay(content, lm) is None


def test_streams_and_batches(lm):
    stream = lm.stream("One day", max_new_tokens=6, seed=2)
    assert "".join(stream)
    [alone] = lm.generate_batch(["One day"], max_new_tokens=6, seed=2)
    assert stream.completion.receipt(lm) == alone.receipt(lm)


@pytest.mark.parametrize(("is_cancelled", "exact"), [(True, True), (False, False)])
def test_a_text_that_was_cut_off(is_cancelled, exact):
    """The tokens so far are compared, and the time limit of then does not matter now."""
    lm = gpt2np.load("bundled", exact=exact)
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 3}
    options = {"json_schema": schema, "seed": 4, "max_new_tokens": 40}
    stream = lm.stream("One day", **options)
    for _ in range(3):
        stream.step()
    if is_cancelled:
        stream.cancel()
    else:
        stream.sequence.end("time")
    content = json.loads(json.dumps(stream.completion.receipt(lm)))
    assert len(content["ids"]) == 3 and content["is_cut_off"]
    content["options"]["max_time"] = 1e-9
    assert replay(content, lm) is None
    ids = [*content["ids"][:2], content["ids"][2] + 1]
    assert "step 2: token" in replay(content | {"ids": ids}, lm)
    assert replay(content | {"is_cut_off": False}, lm)  # other logits, or more tokens


def test_no_receipt_of_a_beam_search_that_the_time_limit_ended(lm):
    done = lm.generate("One day", max_new_tokens=9, num_beams=2, max_time=1e-9)
    with pytest.raises(InvalidArgumentError, match="increase max_time"):
        done.receipt(lm)


@pytest.mark.parametrize("option", [{"window": 8}, {"boundary": "text"}], ids=str)
def test_texts_without_a_receipt(lm, option):
    done = lm.generate("One day ", max_new_tokens=4, **option)
    with pytest.raises(InvalidArgumentError, match="a receipt is of a whole text"):
        done.receipt(lm)


def test_differences(lm, content):
    other = [*content["logits"][:4], "0", *content["logits"][5:]]
    assert replay(content | {"logits": other}, lm) == "step 4: other logits, the same token"
    ids = [*content["ids"][:7], 0, *content["ids"][8:]]
    assert "step 7: token" in replay(content | {"ids": ids}, lm)
    assert "weights_and_config" in replay(content | {"weights_and_config": "x"}, lm)
    with pytest.raises(CheckpointError, match="no receipt"):
        replay({}, lm)


@pytest.mark.parametrize(
    "change",
    [
        *({name: None} for name in ("model", "exact", "options", "ids", "prompt_ids", "logits")),
        {"ids": ["x"] * 12}, {"logits": []}, {"options": {"nonsense": 1}},
    ],
)  # fmt: skip
def test_damaged(lm, content, change, tmp_path):
    with pytest.raises(CheckpointError, match="no receipt"):
        replay(content | change, lm)
    if "options" not in change or change["options"] is None:
        file = tmp_path / "damaged.json"
        file.write_text(json.dumps(content | change))
        with pytest.raises(CheckpointError, match=r"damaged\.json: no receipt"):
            read_receipt(file)


@pytest.mark.parametrize(
    "change",
    [{"options": {"regex": "("}}, {"prompt_ids": [-1]}, {"prompt_ids": [5] * 600}],
)
def test_values_that_no_text_was_generated_from(content, change, tmp_path, capsys):
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(content | change))
    assert run(["replay", str(file)]) == 1
    assert f"error: {file}: no receipt of this version" in capsys.readouterr().err


@pytest.mark.parametrize("error", [TypeError, GPT2NPError])
def test_an_error_within_the_generation_is_no_damaged_receipt(lm, content, monkeypatch, error):
    def fail(*_):
        raise error("not all weights are finite")

    monkeypatch.setattr(lm, "generate", fail)
    with pytest.raises(error, match=r"^not all weights are finite$") as raised:
        replay(content, lm)
    assert raised.type is error


def test_commands_on_another_processor(tmp_path):
    def start(*arguments, core):
        return subprocess.run(
            [sys.executable, "-m", "gpt2np", *arguments],
            env={**os.environ, "OPENBLAS_CORETYPE": core},
            capture_output=True,
            text=True,
        )

    path = str(tmp_path / "receipt.json")
    options = ("--model", "bundled", "--seed", "2", "-n", "9")
    made = start("generate", "One day", *options, "--exact", "--receipt", path, core="Haswell")
    assert made.returncode == 0, made.stderr
    again = start("replay", path, core="Prescott")
    assert (again.returncode, again.stdout) == (0, "same: every step's logits and token\n")
