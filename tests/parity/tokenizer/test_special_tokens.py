"""Special tokens files: the same added tokens as in `transformers`, or a refusal.

Contradicting files, and special tokens without an id, are refused: `transformers` guesses.
"""

import json
import shutil

import pytest

from gpt2np import Tokenizer, TokenizerError
from gpt2np.tokenizer.pre_tokenizer import QWEN2_PATTERN

EOT = "<|endoftext|>"
SIZE = 1000  # of the vocabulary: GPT-2's first tokens and <|endoftext|>
TEXT = f"a {EOT} b [PAD] <s>c</s> X1 \n[MASK]\u3000, YX1Z<|im_end|> hello\n [PAD][PAD] ."
CONFIG = {"model_type": "gpt2"}
GENERAL = {"tokenizer_class": "PreTrainedTokenizerFast"}
GPT2 = {"tokenizer_class": "GPT2Tokenizer"}


def token(content, **flags):
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": content} | plain | flags


def typed(content, **flags):
    return {"__type": "AddedToken"} | token(content, **flags)


def declared(*tokens, first=SIZE):
    return {str(number): each for number, each in enumerate(tokens, first)}


SLASH = token("</s>")


def roles(*keys, value=SLASH):
    return {f"{key}_token": value for key in keys}


PAD = token("[PAD]", special=True)
END = token(EOT, special=True, normalized=True)


def beside(config=None, names=None, added=None):
    """Return the files beside a vocabulary: tokenizer_config, special_tokens_map, added_tokens."""
    files = {"tokenizer_config": config, "special_tokens_map": names, "added_tokens": added}
    return {name: content for name, content in files.items() if content is not None}


ENDS = roles("unk", "bos", "eos", value=typed(EOT, normalized=True))
ROLES = roles("pad", value="[PAD]")
PLAIN_X1 = token("X1", special=False, normalized=True, single_word=True)

# What is beside vocab.json and merges.txt, each as some version of transformers wrote it.
TWO_FILES = {
    "nothing": {},
    "openai-community/gpt2": beside({"model_max_length": 1024}),
    "2: roles without ids": beside(None, ROLES | {"additional_special_tokens": ["X1", "<s>"]}),
    "2: added": beside(None, ROLES, {"[PAD]": SIZE}),
    "3: every role elsewhere": beside(
        None, roles("bos", "eos", "unk") | {"pad_token": token("[PAD]", normalized=True)}
    ),
    "3: objects in the config": beside(
        ENDS | {"add_prefix_space": False, "special_tokens_map_file": None},
        {"mask_token": token("[MASK]", single_word=True)},
    ),
    "4: declared": beside(
        GPT2 | ROLES | {"added_tokens_decoder": declared(END, PAD, PLAIN_X1, first=SIZE - 1)},
        ROLES | roles("eos"),
        {"X1": SIZE + 1, "[PAD]": SIZE, "other": 9},
    ),
    "4: declared, and not in order": beside(
        {
            "added_tokens_decoder": declared(PAD, first=SIZE + 1)
            | declared(token("X1", special=True, single_word=True))
        }
    ),
    "4: an extra list": beside({"additional_special_tokens": ["X1"], "pad_token": EOT}),
    "5: extra tokens": beside(
        {"extra_special_tokens": ["<s>"], "additional_special_tokens": ["X1"]},
        {"additional_special_tokens": ["</s>"]},
    ),
    "5: an extra list in the map": beside(None, {"extra_special_tokens": ["X1", token("[PAD]")]}),
    "an empty role": beside(roles("bos", "eos", "pad", value="")),
    "one token, two ways": beside({"bos_token": EOT, "eos_token": typed(EOT, normalized=True)}),
    "a strip": beside({"eos_token": typed(EOT, lstrip=True)}),
    "a role that is a word": beside(GPT2 | {"eos_token": "he"}),
}

# Why a kind of TWO_FILES is refused.
TWO_FILES_REFUSED = {
    "2: added": "has ids without flags, .*; save the tokenizer with transformers 5",
    "5: extra tokens": "must be one list in all files",
    "one token, two ways": "described in two ways",
    "a strip": "does not support lstrip of",
}


def write(folder, files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def theirs(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def flags(each):
    return each.content, each.single_word, each.normalized, each.special


def assert_equal(folder, text=TEXT):
    expected, ours = theirs(folder), Tokenizer.load(folder)
    for each in (text, " " + text, text[3:]):
        assert ours.encode(each, allowed_special="all") == expected.encode(each), each
    added = {each.id: flags(each) for each in ours.vocabulary.added_tokens}
    assert added == {n: flags(each) for n, each in expected.added_tokens_decoder.items()}
    named = {key: value for key, value in expected.special_tokens_map.items() if value}
    assert ours.vocabulary.special_tokens_map == named
    end = expected.eos_token_id if expected.eos_token else ours.special_tokens.get(EOT)
    assert ours.eos_token_id == end
    return ours


@pytest.fixture(scope="module")
def first_tokens(gpt2_vocabulary, tmp_path_factory):
    """A folder with vocab.json and merges.txt of GPT-2's first tokens and <|endoftext|>."""
    folder = tmp_path_factory.mktemp("first_tokens")
    vocab = json.loads((gpt2_vocabulary / "vocab.json").read_text(encoding="utf-8"))
    tokens = [*sorted(vocab, key=vocab.get)[: SIZE - 1], EOT]
    write(folder, {"vocab": {token: number for number, token in enumerate(tokens)}})
    lines = (gpt2_vocabulary / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = "\n".join(lines[: 1 + SIZE - 257])  # after a comment
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    return folder


@pytest.fixture
def two_files(first_tokens, tmp_path):
    """A copy of `first_tokens`."""
    return copy_two_files(first_tokens, tmp_path)


def copy_two_files(source, folder):
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(source / name, folder)
    write(folder, {"config": CONFIG})
    return folder


@pytest.mark.parametrize("kind", TWO_FILES)
def test_vocab_and_merges(kind, two_files):
    write(two_files, TWO_FILES[kind])
    if message := TWO_FILES_REFUSED.get(kind):
        with pytest.raises(TokenizerError, match=message):
            Tokenizer.load(two_files)
        return
    ours = assert_equal(two_files)
    assert Tokenizer.load(two_files / "vocab.json").vocabulary == ours.vocabulary
    assert ours.decode(ours.encode(" x" + TEXT, disallowed_special=())) == " x" + TEXT


@pytest.fixture(scope="module")
def small_json(first_tokens):
    """The tokenizer.json of `first_tokens` without added tokens, as an object."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import decoders, models, pre_tokenizers

    files = [str(first_tokens / name) for name in ("vocab.json", "merges.txt")]
    rust = Rust(models.BPE.from_file(*files))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    return json.loads(rust.to_str())


def tokenizer_json(content, *tokens, first=None, **changes):
    """Return `content` with added tokens; <|endoftext|> has the last id of its vocabulary."""
    first = first or len(content["model"]["vocab"]) - 1
    added = [{"id": number} | each for number, each in enumerate(tokens, first)]
    return content | {"added_tokens": added} | changes


SPACED = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}

# (added tokens of tokenizer.json, what else is in it, its tokenizer_config.json)
ONE_FILE = {
    "alone": ([END, PAD], {}, {}),
    "nothing in it": ([], {}, {}),
    "a role of a token in it": ([END, PAD | {"single_word": True}], {}, ROLES),
    "the role has other flags": ([END, PAD], {}, {"pad_token": typed("[PAD]", single_word=True)}),
    "a strip": ([END, PAD | {"lstrip": True}], {}, {}),
    "a role that is not special": ([END, SLASH | {"special": False}], {}, {"eos_token": "</s>"}),
    "a role that is new": ([END], {}, {"eos_token": "</s>", "extra_special_tokens": ["X1"]}),
    "declared with other flags": (
        [END, PAD],
        {},
        {"added_tokens_decoder": declared(token("[PAD]", special=False))},
    ),
    "declared without one": (
        [END, PAD],
        {},
        {"added_tokens_decoder": declared(END, first=SIZE - 1)},
    ),
    "a space in front": ([END], {"pre_tokenizer": SPACED}, {}),
    "tokens in front": ([END], {}, {"add_bos_token": True}),
}


# Why a kind of ONE_FILE is refused: always, or read as a GPT2Tokenizer.
ONE_FILE_REFUSED = {
    "a role that is new": "has no id",
    "a strip": "does not support lstrip of",
    "a space in front": "does not support add_prefix_space",
    "tokens in front": "does not support add_bos_token",
    "declared with other flags": "differ from those of tokenizer.json",
    "declared without one": "differ from those of tokenizer.json",
}
GPT2_REFUSED = {"nothing in it": "has no id"}


@pytest.mark.parametrize("kind", ONE_FILE)
@pytest.mark.parametrize("class_name", ["GPT2TokenizerFast", "PreTrainedTokenizerFast", None])
def test_tokenizer_json(kind, class_name, small_json, tmp_path):
    added, changes, config = ONE_FILE[kind]
    content = tokenizer_json(small_json, *added, **changes)
    name = {"tokenizer_class": class_name} if class_name else {}
    write(tmp_path, {"tokenizer": content, "tokenizer_config": config | name, "config": CONFIG})
    is_gpt2 = class_name != "PreTrainedTokenizerFast"
    if message := (ONE_FILE_REFUSED | (GPT2_REFUSED if is_gpt2 else {})).get(kind):
        with pytest.raises(TokenizerError, match=message):
            Tokenizer.load(tmp_path)
    else:
        assert_equal(tmp_path)


def test_a_named_tokenizer_json_is_read_alone(small_json, tmp_path):
    write(tmp_path, {"tokenizer": tokenizer_json(small_json, END), "tokenizer_config": GPT2})
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "[PAD]"}')
    with pytest.raises(TokenizerError, match=r"'\[PAD\]' has no id"):
        Tokenizer.load(tmp_path)
    assert set(Tokenizer.load(tmp_path / "tokenizer.json").special_tokens) == {EOT}


@pytest.fixture
def own_vocabulary(gpt2_vocabulary, tmp_path):
    """A folder with a vocabulary of bytes, two merges, `<s>` and `</s>`, none of them declared."""
    gpt2 = json.loads((gpt2_vocabulary / "vocab.json").read_text(encoding="utf-8"))
    by_id = sorted(gpt2.items(), key=lambda item: item[1])
    vocab = dict(by_id[:256]) | {"he": 256, "hel": 257, "<s>": 258, "</s>": 259}
    write(tmp_path, {"vocab": vocab, "config": CONFIG})
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\nhe l\n")
    return tmp_path


OWN = roles("bos", value="<s>") | roles("eos", "unk", value="</s>")


@pytest.mark.parametrize("files", [{"special_tokens_map": OWN}, {"tokenizer_config": OWN}])
@pytest.mark.parametrize("pad", [{}, {"pad_token": "[PAD]"}])
def test_a_vocabulary_without_end_of_text(files, pad, own_vocabulary):
    write(own_vocabulary, {name: content | pad for name, content in files.items()})
    ours = assert_equal(own_vocabulary)
    assert ours.eos_token_id == 259


def test_end_of_text_that_is_only_assumed_gets_no_id(own_vocabulary):
    """transformers gives it the id 260, for which the model has no row."""
    ours = Tokenizer.load(own_vocabulary)
    assert theirs(own_vocabulary).convert_tokens_to_ids(EOT) == ours.vocab_size == 260
    assert ours.eos_token_id is None and ours.special_tokens == {}


@pytest.mark.parametrize(
    ("more", "names", "message"),
    [
        # transformers gives the id 260 to <|endoftext|>, and 261 to [PAD]
        ({}, ROLES, r"transformers adds <\|endoftext\|>, which no file"),
        ({"hel": 260}, OWN | ROLES, r"'\[PAD\]' has no id, but .* 260, the id of another"),
    ],
)
def test_new_token_for_which_no_id_is_free_is_refused(more, names, message, own_vocabulary):
    vocab = json.loads((own_vocabulary / "vocab.json").read_text(encoding="utf-8"))
    write(own_vocabulary, {"vocab": vocab | more, "special_tokens_map": names})
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.load(own_vocabulary)


@pytest.mark.parametrize("kind", ["2: roles without ids", "4: declared"])
def test_saved_and_read_again_by_both(kind, two_files, tmp_path):
    write(two_files, TWO_FILES[kind])
    before = Tokenizer.load(two_files)
    saved = tmp_path / "saved"
    saved.mkdir()
    write(saved, {"added_tokens": {"old": 7}, "special_tokens_map": {"pad_token": "old"}})
    before.save(saved)
    write(saved, {"config": CONFIG})
    after = assert_equal(saved)
    assert (after.vocabulary, after.eos_token_id) == (before.vocabulary, before.eos_token_id)
    assert after.vocabulary.special_tokens_map == before.vocabulary.special_tokens_map


DECODER = "added_tokens_decoder"
REFUSED = {
    "tokenizer_config": [
        ({"add_eos_token": True}, "does not support add_eos_token"),
        ({"tokenizer_class": "Qwen2Tokenizer"}, "reads it as a Qwen2"),
        ({"tokenizer_class": 7}, "tokenizer_class must be a text"),
        ({"add_prefix_space": "yes"}, "add_prefix_space must be true or false"),
        ({"eos_token": {"text": "</s>"}}, "eos_token must be a token"),
        ({"eos_token": typed("x", lstrip=1)}, "lstrip must be true or false"),
        ({"eos_token": "\ud800"}, "not Unicode text"),
        ({"extra_special_tokens": "X1"}, "extra_special_tokens must be one list"),
        ({"extra_special_tokens": [None]}, "extra_special_tokens must be a token"),
        ({DECODER: [PAD]}, "added_tokens_decoder must be an obj"),
        ({DECODER: {"x": PAD}}, "no id and token in 'x'"),
        ({DECODER: declared(PAD, first=50300)}, "id 50300, but"),
        ({DECODER: declared(PAD, PAD)}, "two ids"),
        ({DECODER: declared(END)}, f"id {SIZE}, but .* it {SIZE - 1}"),
        ({DECODER: declared(token(""))}, "a token is empty"),
    ],
    "special_tokens_map": [
        ({"additional_special_tokens": 3}, "must be one list in all files, not 3"),
        ([], "expected a JSON object"),
        (b'{"eos_token": "\xff"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (5 << 20), "expected at most"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "message"), [(name, *row) for name in REFUSED for row in REFUSED[name]]
)
def test_refused_in_one_line(name, content, message, two_files):
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    (two_files / f"{name}.json").write_bytes(raw)
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.load(two_files)
    text = str(caught.value)
    assert f"{name}.json" in text and "\n" not in text and len(text) < 500


NFC = {"normalizer": {"type": "NFC"}}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
QWEN_SPLIT = SPLIT | {"pattern": {"Regex": QWEN2_PATTERN}}


def steps(split):
    byte_level = SPACED | {"add_prefix_space": False, "use_regex": False}
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}}


OTHER_TEXT = f"e\u0301 a1234 don't {EOT} x_1"


@pytest.mark.parametrize("changes", [NFC, steps(QWEN_SPLIT)])
@pytest.mark.parametrize("files", [{"tokenizer_config": GPT2}, {"config": CONFIG}])
def test_what_their_gpt2_tokenizer_ignores_is_refused(changes, files, small_json, tmp_path):
    write(tmp_path, files | {"tokenizer": tokenizer_json(small_json, END, **changes)})
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.json: transformers reads it as a GPT2Tok"
    ):
        Tokenizer.load(tmp_path)
    Tokenizer.load(tmp_path / "tokenizer.json")
    write(tmp_path, {"tokenizer_config": GENERAL, "config": CONFIG})
    assert_equal(tmp_path, OTHER_TEXT)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Qwen2TokenizerFast", "ignores its normalizer and pre_tokenizer"),
        ("CodeGenTokenizer", "reads it as a CodeGenTokenizer"),
        ("RobertaTokenizerFast", "reads it as a RobertaTokenizer"),
    ],
)
def test_class_that_ignores_the_files_splitter_is_refused(name, message, small_json, tmp_path):
    config = {"tokenizer_class": name}
    write(tmp_path, {"tokenizer": tokenizer_json(small_json, END), "tokenizer_config": config})
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("where", ["tokenizer_config", "config", "model_type"])
def test_qwen2s_own_splitter_is_read(where, small_json, tmp_path):
    qwen = {"tokenizer_class": "Qwen2Tokenizer"}
    files = {
        "tokenizer": tokenizer_json(
            small_json, token(EOT, special=True), **NFC, **steps(QWEN_SPLIT)
        ),
        "tokenizer_config": {"pad_token": EOT} | (qwen if where == "tokenizer_config" else {}),
        "config": {"model_type": "qwen2"} | (qwen if where == "config" else {}),
    }
    write(tmp_path, files)
    ours = assert_equal(tmp_path, OTHER_TEXT)
    assert ours.vocabulary.pattern == QWEN2_PATTERN and ours.vocabulary.nfc


def test_openais_vocabulary_keeps_its_speed(gpt2_vocabulary, tmp_path):
    copy_two_files(gpt2_vocabulary, tmp_path)
    write(tmp_path, {"tokenizer_config": {DECODER: declared(END, PAD, first=50256)}})
    assert Tokenizer.load(tmp_path).vocabulary.can_ignore_merges
    write(tmp_path, {"tokenizer_config": roles("bos", "eos", "unk", value=None)})
    assert not Tokenizer.load(tmp_path).vocabulary.can_ignore_merges
