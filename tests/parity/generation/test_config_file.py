"""generation_config.json: keys that are used, and damaged files."""

import json

import pytest
from helpers.peers import transformers

from gpt2np import CheckpointError
from gpt2np.generation.config_file import read_generation_config


def read(folder, **content):
    (folder / "generation_config.json").write_text(json.dumps(content))
    options, _ = read_generation_config(folder)
    return options


def test_what_is_honored(tmp_path):
    content = {"temperature": 0.5, "top_k": 7, "top_p": 0.8, "min_p": 0.1, "typical_p": 0.9}
    content |= {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_new_tokens": 4}
    content |= {"max_new_tokens": 50, "length_penalty": 2.0, "early_stopping": "never"}
    options = read(tmp_path, **content, do_sample=True)
    assert {name: getattr(options, name) for name in content} == content


def test_bans(tmp_path):
    """As in transformers, an end-of-text id is not a bad word."""
    options = read(tmp_path, bad_words_ids=[[5], [6, 7], [9]], suppress_tokens=[3], eos_token_id=9)
    assert options.bad_words_ids == ((5,), (6, 7), (3,))


def test_beams(tmp_path):
    greedy = read(tmp_path, num_beams=4)
    assert (greedy.num_beams, greedy.temperature) == (4, 0)
    sampled = read(tmp_path, num_beams=4, do_sample=True)
    assert sampled.num_beams == 1


def test_what_is_about_one_call_is_not_the_files_to_say(tmp_path):
    options = read(tmp_path, seed=1, stop=["a"], num_return_sequences=3, logprobs=2, regex="x")
    assert (options.seed, options.stop, options.num_return_sequences) == (None, (), 1)


def test_as_transformers_writes_it(tmp_path):
    transformers.GenerationConfig().save_pretrained(tmp_path)
    options, _ = read_generation_config(tmp_path)
    assert options.num_beams == 1
    beams = {"num_beams": 3, "length_penalty": 0.5, "early_stopping": True}
    transformers.GenerationConfig(**beams).save_pretrained(tmp_path)
    options, _ = read_generation_config(tmp_path)
    assert (options.num_beams, options.length_penalty, options.early_stopping) == (3, 0.5, True)


@pytest.mark.parametrize(
    "content",
    [
        *({"bad_words_ids": [5]}, {"suppress_tokens": "x"}, {"repetition_penalty": 0}),
        *({"num_beams": [2]}, {"early_stopping": "soon"}),
    ],
)
def test_damaged(tmp_path, content):
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        read(tmp_path, **content)
