"""`.tiktoken` files: ids equal to tiktoken's, whatever the ranks."""

import base64
import random

import pytest
import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks, load_tiktoken_bpe

from gpt2np import Tokenizer, TokenizerError
from gpt2np.tokenizer.pre_tokenizer import CL100K_PATTERN, GPT2_PATTERN


def dump(ranks, path):
    """What tiktoken's own writer writes (that needs one more package), as its reader shows."""
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    path.write_text("".join(lines))
    assert load_tiktoken_bpe(str(path)) == ranks


def texts(data):
    for name in ("eng", "cmn_hans", "arb", "hin", "kor"):
        yield (data / "text/udhr" / f"{name}.txt").read_text(encoding="utf-8")
    yield (data / "text/emoji-test.txt").read_text(encoding="utf-8")[:20_000]
    yield (data / "text/code").glob("*.txt").__next__().read_text(encoding="utf-8")[:20_000]


@pytest.fixture(scope="module")
def gpt2_ranks(gpt2_vocabulary):
    files = (str(gpt2_vocabulary / name) for name in ("merges.txt", "vocab.json"))
    return data_gym_to_mergeable_bpe_ranks(*files)


@pytest.fixture(scope="module")
def gpt2_file(gpt2_ranks, tmp_path_factory):
    """GPT-2's ranks in a file, the only one in its folder."""
    path = tmp_path_factory.mktemp("gpt2") / "any.tiktoken"
    dump(gpt2_ranks, path)
    return path


@pytest.mark.parametrize("pattern", [GPT2_PATTERN, CL100K_PATTERN])
def test_gpt2s_ranks(pattern, gpt2_ranks, gpt2_file, data):
    special = {"<|endoftext|>": 50256}
    ours = Tokenizer.from_tiktoken(gpt2_file, pattern=pattern, special_tokens=special)
    theirs = tiktoken.Encoding(
        "x", pat_str=pattern, mergeable_ranks=gpt2_ranks, special_tokens=special
    )
    for text in texts(data):
        text += "<|endoftext|>"
        ids = ours.encode(text, allowed_special="all")
        assert ids == theirs.encode(text, allowed_special="all")
        assert ours.decode(ids) == text


@pytest.mark.parametrize("count", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_ranks_that_no_trainer_would_learn(count, tmp_path):
    """Any two neighbors that join to a token are merged, and a whole piece needs no merges."""
    rng = random.Random(0)
    for number in range(count):
        tokens = {bytes([byte]) for byte in range(256)}
        while len(tokens) < 300:
            tokens.add(bytes(rng.choices(b"abc \n", k=rng.randrange(2, 7))))
        order = sorted(tokens - {bytes([byte]) for byte in range(256)})
        rng.shuffle(order)
        ranks = {bytes([byte]): byte for byte in range(256)}
        ranks |= {token: rank for rank, token in enumerate(order, 256)}
        path = tmp_path / f"{number}.tiktoken"
        dump(ranks, path)
        ours = Tokenizer.load(path)
        theirs = tiktoken.Encoding(
            "x", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={}
        )
        for length in (3, 10, 30, 300):
            for _ in range(30):
                text = "".join(rng.choices("abc \n", k=length))
                assert ours.encode(text) == theirs.encode(text), text


def test_saved_for_hugging_face(gpt2_file, tmp_path):
    from tokenizers import Tokenizer as Rust

    ours = Tokenizer.load(gpt2_file.parent)  # the only vocabulary there
    ours.save(tmp_path / "saved")
    rust = Rust.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    text = "GPT2 was created by OpenAI, antidisestablishmentarianism 漢字 🤗"
    assert rust.encode(text).ids == ours.encode(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("!!!! 5", "line 257: expected a token in base64 and its rank"),
        ("YWI=", "line 257: expected a token in base64 and its rank"),
        ("YWI= x", "line 257: expected a token in base64 and its rank"),
        ("YQ== 300", "line 257: .* repeats a token"),
        ("YWI= 5", "gives the same id to two tokens"),
        ("YWI= -5", "an id must be a whole number, at least 0"),
    ],
)
def test_damaged_files(line, message, tmp_path):
    path = tmp_path / "x.tiktoken"
    lines = [f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(256)]
    path.write_text("\n".join([*lines, line, ""]))
    with pytest.raises(TokenizerError, match=message) as error:
        Tokenizer.from_tiktoken(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    path.write_text("\n".join(lines[1:]))
    with pytest.raises(
        TokenizerError, match=r"1 of the 256 single-byte tokens are missing, .*0x00"
    ):
        Tokenizer.from_tiktoken(path)
