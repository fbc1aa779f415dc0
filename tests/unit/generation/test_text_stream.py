"""Streaming text: whole characters, cut exactly before a stop."""

import random

import pytest

from gpt2np import GenerationOptions, Tokenizer
from gpt2np.generation.detokenizer import StreamingDetokenizer

PIECES = "é中😀 \n.aeüñ—“”𝕏"


@pytest.fixture(scope="module")
def tokenizer(bundled):
    return Tokenizer.load(bundled)


def random_ids(rng, tokenizer):
    """Random ids: single bytes (also of broken characters), whole characters, common tokens."""
    ids = []
    while len(ids) < rng.randrange(1, 24):
        kind = rng.random()
        if kind < 0.3:
            ids.append(rng.randrange(256))
        elif kind < 0.7:
            ids += tokenizer.encode(rng.choice(PIECES) * rng.randrange(1, 3))
        else:
            ids.append(rng.randrange(4000))
    return ids


def certain(tokenizer, ids):
    """Decode ids without the last bytes that may be the start of a character."""
    data = tokenizer.decode_bytes(ids)
    for n_held in range(4):
        text = data[: len(data) - n_held].decode("utf-8", "replace")
        rest = data[len(data) - n_held :]
        if n_held == 0 and not text.endswith("\ufffd"):
            return text
        if n_held and rest[0] >= 0xC0:
            try:
                rest.decode()
            except UnicodeDecodeError as error:
                if error.reason == "unexpected end of data":
                    return text
    return data.decode("utf-8", "replace")


def cut(tokenizer, ids, stops):
    """Search the whole text after every id; return the cut text and the number of ids."""
    for n in [*range(1, len(ids) + 1), None]:
        text = tokenizer.decode(ids) if n is None else certain(tokenizer, ids[:n])
        starts = [text.index(stop) for stop in stops if stop in text]
        if starts:
            return text[: min(starts)], n
    return text, None


def run(tokenizer, ids, stops):
    detokenizer = StreamingDetokenizer(tokenizer, GenerationOptions(stop=stops))
    stopped = None
    for n, token_id in enumerate(ids, 1):
        detokenizer.push(token_id)
        if detokenizer.stop_text is not None:
            stopped = n
            break
    n_pushed = len(detokenizer.pieces)
    detokenizer.finish()
    assert len(detokenizer.pieces) == n_pushed + (stopped is None)
    return [*detokenizer.pieces, ""][: n_pushed + 1], stopped


def random_stops(rng, text):
    """Random stops: substrings across token borders, and texts that do not occur."""
    stops = []
    for _ in range(rng.randrange(4)):
        start = rng.randrange(len(text) + 1)
        stop = text[start : start + rng.randrange(1, 5)]
        if rng.random() < 0.3:
            stop += rng.choice("xé中")
        stops += [stop] if stop else []
    return stops


@pytest.mark.parametrize("number", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_streams(tokenizer, number):
    """The joined pieces equal the cut text; no piece ends inside of a character."""
    rng = random.Random(9)
    for _ in range(number):
        ids = random_ids(rng, tokenizer)
        stops = random_stops(rng, tokenizer.decode(ids))
        pieces, after = run(tokenizer, ids, stops)
        expected, expected_after = cut(tokenizer, ids, stops)
        assert "".join(pieces) == expected, (ids, stops)
        # How soon U+FFFD stands for bytes that are no character depends on the decoder.
        assert after == expected_after or any("\ufffd" in stop for stop in stops)


def test_silent_ids(tokenizer):
    detokenizer = StreamingDetokenizer(
        tokenizer, GenerationOptions(stop_token_ids=[70]), eos_token_ids={80}
    )
    for token_id in (80, 65, 70, 66):
        detokenizer.push(token_id)
    assert detokenizer.text == tokenizer.decode([65, 66])
