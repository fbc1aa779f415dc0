"""Damaged tokenizer files: an error of one line, or ids that decode to the text again."""

import json
import shutil
from contextlib import suppress

import pytest
from helpers import mutations
from helpers.one_line import assert_one_line
from hypothesis import event, given
from hypothesis import strategies as st

from gpt2np import GPT2NPError, Tokenizer
from gpt2np.tokenizer.pre_tokenizer import QWEN2_PATTERN
from gpt2np.tokenizer.vocabulary import AddedToken, Vocabulary, bytes_to_chars

MERGES = ("t h", "Ġ th", "th e", "Ġth e", "a a", "aa aa", "Ġ a", "1 2", "Ã ©", "æ ¼")
TEXTS = (
    "",
    " the theaaaaaaaaab 12:30\n\n  é 漢字😀 <|endoftext|><tool> [x] It's",
    "a" * 3000,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders with small vocabularies in each of the formats."""
    tokens = [bytes_to_chars(bytes([byte])) for byte in range(256)]
    tokens += [merge.replace(" ", "") for merge in MERGES]
    ids = {token: i for i, token in enumerate(tokens)}
    ranks = {merge: rank for rank, merge in enumerate(MERGES)}
    end = AddedToken("<|endoftext|>", len(ids))
    tool = AddedToken("<tool>", len(ids) + 1, special=False)
    words = AddedToken("[x]", len(ids) + 2, single_word=True, normalized=True)
    characters = {
        character: i for i, character in enumerate("\u2581abcdefghijklmnoprstuvwxyz:123?é")
    }
    vocabularies = {
        "gpt2": Vocabulary(ids, ranks, (end,)),
        "qwen": Vocabulary(ids, ranks, (end, tool, words), QWEN2_PATTERN, nfc=True),
        "whole": Vocabulary(ids, ranks, (end,), None),
        "characters": Vocabulary(
            characters | {"th": 50, "the": 51}, {"t h": 0, "th e": 1}, (), None, byte_level=False
        ),
    }
    made = tmp_path_factory.mktemp("vocabularies")
    for name, vocabulary in vocabularies.items():
        Tokenizer(vocabulary).save(made / name)
    (made / "gpt2" / "tokenizer.json").unlink()
    return sorted(made.iterdir())


CONTENTS = (b"", b"{}", b"[]", b"null", b"\n", b"\xff\xfe{", b"[" * 100_000)
LINES = (b"", b"a", b"a b", b"a  b", b"\xff")


def damage(file, rng):
    """Change bytes, lines, or JSON values of a file, or replace the whole content."""
    content = file.read_bytes()
    kind = rng.randrange(20)
    if kind == 0:
        file.write_bytes(rng.choice(CONTENTS))
    elif kind < 4 and content:
        change = rng.choice([mutations.flip_byte, mutations.cut, mutations.insert])
        file.write_bytes(change(content, rng))
    elif file.suffix == ".json":
        with suppress(ValueError, IndexError, AttributeError, KeyError):  # damaged before
            parsed = json.loads(content)
            model = parsed.get("model", {})
            large = {key: model.pop(key) for key in ("vocab", "merges") if rng.random() < 0.8}
            mutations.change_json(parsed, rng)
            model.update(large)
            file.write_bytes(mutations.json_text(parsed, rng))
    else:
        lines = content.split(b"\n")
        line, other = rng.choice(lines), rng.choice(lines)
        lines[rng.randrange(len(lines))] = rng.choice([*LINES, line, line + b" x", line + other])
        file.write_bytes(b"\n".join(lines))


@given(rng=st.randoms(), text=st.text())
def test_tokenizer_files(folders, tmp_path_factory, rng, text):
    folder = tmp_path_factory.mktemp("damaged")
    try:
        shutil.copytree(rng.choice(folders), folder, dirs_exist_ok=True)
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            damage(rng.choice(sorted(folder.iterdir())), rng)
        check_tokenizer(folder, (*TEXTS, text))
    finally:
        shutil.rmtree(folder)


def check_tokenizer(folder, texts):
    try:
        tokenizer = Tokenizer.load(folder)
        event("loaded")
        is_lossless = not (tokenizer.vocabulary.nfc or tokenizer.vocabulary.unk_token)
        for text in texts:
            ids = tokenizer.encode(text, disallowed_special=())
            assert not is_lossless or tokenizer.decode(ids) == text
            assert tokenizer.encode_batch([text], disallowed_special=()) == [ids]
    except GPT2NPError as error:
        assert_one_line(error)
