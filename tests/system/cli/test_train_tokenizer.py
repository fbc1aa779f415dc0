"""`python -m gpt2np train-tokenizer` as a user runs it, and the folder that it writes."""

import json

import pytest
from helpers.command_line import run_here
from helpers.peers import transformers
from helpers.references import save_reference
from tokenizers import Tokenizer as PeerTokenizer

from gpt2np import Tokenizer
from gpt2np.tokenizer.training import TrainingOptions, train

EOT = "<|endoftext|>"
TEXT = "The cat sat on the mat. It's the cat's mat, 12 times; déjà vu 中文\n\n\tThe end.  " * 5


def run(*arguments, **options):
    return run_here("train-tokenizer", *arguments, **options)


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text(f"{TEXT}\n{EOT}\nA second document: {TEXT}\n{EOT}\n", encoding="utf-8")
    return file


def trained(corpus, *arguments):
    """Train, and return (result, folder)."""
    folder = corpus.parent / "vocabulary"
    result = run(corpus, "--out", folder, *arguments)
    assert result.returncode == 0, result.stderr
    return result, folder


class TestReport:
    def test_json(self, corpus):
        result, folder = trained(corpus, "--vocab-size", 300, "--json")
        report = json.loads(result.stdout)
        documents = [TEXT, f"A second document: {TEXT}"]
        ids = [Tokenizer.load(folder).encode(text) for text in documents]
        symbols = len("".join(documents).encode())
        assert report["vocab_size"] == 300
        assert report["merges"] == 43
        assert report["characters"] == len("".join(documents))
        assert report["symbols"] == symbols
        assert report["tokens"] == sum(map(len, ids))
        assert report["reduction_percent"] == round(100 - 100 * report["tokens"] / symbols, 2)
        assert "' mat'" in report["longest_tokens"]

    def test_text(self, corpus):
        result, folder = trained(corpus, "--vocab-size", 300)
        lines = result.stdout.splitlines()
        assert lines[0].startswith("300 tokens, 43 merges, learned from ")
        assert lines[1].startswith("tokens per character: 1.0")
        assert lines[2].endswith(" % fewer")
        assert "  ' mat'" in lines
        assert result.stderr == f"written to {folder}\n"

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ("9000 --min-frequency 11", "9000: no pair is left to merge"),
            ("9 --alphabet characters", "9: the alphabet alone has that many"),
        ],
    )
    def test_a_vocabulary_that_is_not_filled_is_told(self, corpus, options, told):
        result, _ = trained(corpus, "--vocab-size", *options.split())
        assert f"tokens instead of {told}" in result.stderr


class TestFolder:
    @pytest.mark.parametrize(
        ("pattern", "alphabet"), [("gpt2", "bytes"), ("none", "characters"), ("qwen2", "bytes")]
    )
    def test_the_peers_read_it(self, corpus, pattern, alphabet):
        arguments = ["--pattern", pattern, "--alphabet", alphabet, "--json"]
        result, folder = trained(corpus, "--vocab-size", 320, *arguments)
        peer = PeerTokenizer.from_file(str(folder / "tokenizer.json"))
        auto = transformers.AutoTokenizer.from_pretrained(folder)
        texts = [TEXT, f"A second document: {TEXT}"]
        n_tokens = sum(len(peer.encode(text).ids) for text in texts)
        assert json.loads(result.stdout)["tokens"] == n_tokens
        for text in texts:
            ids = peer.encode(text).ids
            assert peer.decode(ids) == text
            assert auto(text)["input_ids"] == ids
            assert auto.decode(ids) == text
        assert peer.encode(f"a{EOT}").ids[-1] == 0
        assert auto.eos_token == EOT and auto.eos_token_id == 0
        if alphabet == "characters":
            assert peer.encode("ß").tokens == [auto.unk_token] == ["<unk>"]

    def test_characters_with_a_length_cap(self, corpus):
        arguments = ["--alphabet", "characters", "--max-token-length", 4]
        _, folder = trained(corpus, "--vocab-size", 60, *arguments)
        vocab = PeerTokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
        ordinary = set(vocab) - {EOT, "<unk>"}
        assert {token for token in ordinary if len(token) == 1} == set(TEXT + "A second document: ")
        assert max(map(len, ordinary)) == 3
        assert not (folder / "vocab.json").exists()


class TestInput:
    def test_walk_through_json_lines(self, tmp_path, data):
        """A byte-level vocabulary of 1,024 tokens from .jsonl text (published as about an hour for
        10 million words)."""
        with (data / "stories" / "train.txt").open(encoding="utf-8") as file:
            stories = file.read(500_000).split(EOT)
        lines = (json.dumps({"id": n, "story": text}) for n, text in enumerate(stories))
        (tmp_path / "stories.jsonl").write_text("\n".join(lines), encoding="utf-8")
        pattern = tmp_path / "*.jsonl"
        arguments = ["--vocab-size", 1024, "--field", "story", "--json"]
        result = run(pattern, "--out", tmp_path / "out", *arguments)
        report = json.loads(result.stdout)
        assert report["reduction_percent"] > 50
        content = json.loads((tmp_path / "out/tokenizer.json").read_text(encoding="utf-8"))
        expected = train(stories, TrainingOptions(vocab_size=1024))
        assert [tuple(pair) for pair in content["model"]["merges"]] == expected.merges
        assert len(content["model"]["vocab"]) == 1024

    def test_special_tokens_are_separators_and_never_merged(self, tmp_path):
        (tmp_path / "a.txt").write_text(f"ab<stop>ab{EOT}ab<stop>ab", encoding="utf-8")
        special = ["--special-token", "<stop>", "--special-token", "<pad>"]
        result = run(
            tmp_path / "a.txt", "--vocab-size", 300, "--out", tmp_path / "o", *special, "--json"
        )
        report = json.loads(result.stdout)
        assert (report["merges"], report["vocab_size"]) == (1, 259)
        vocab = json.loads((tmp_path / "o/vocab.json").read_text(encoding="utf-8"))
        assert (vocab["<stop>"], vocab["<pad>"], vocab["ab"]) == (0, 1, 258)

    def test_a_file_that_cannot_be_read(self, corpus):
        (corpus.parent / "bad.txt").write_bytes(b"\xff")
        arguments = [corpus.parent / "*.txt", "--vocab-size", 300, "--out", corpus.parent / "out"]
        refused = run(*arguments)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "bad.txt, document 1 is not UTF-8 text: byte 0xff at offset 0" in refused.stderr

    @pytest.mark.permissions
    def test_folder_that_cannot_be_written(self, corpus, tmp_path):
        (tmp_path / "closed").mkdir(mode=0o500)
        result = run(corpus, "--vocab-size", 300, "--out", tmp_path / "closed" / "out")
        assert result.returncode == 1 and "cannot write" in result.stderr


@pytest.mark.parametrize("alphabet", ["bytes", "characters"])
def test_a_model_generates_with_it(corpus, tmp_path, alphabet):
    """A transformers model, and the vocabulary learned into its folder."""
    folder = tmp_path / "vocabulary"
    trained(corpus, "--vocab-size", 300, "--alphabet", alphabet)
    size = Tokenizer.load(folder).vocab_size
    save_reference(folder, vocab_size=size, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    options = ("--model", folder, "-n", "8", "--greedy", "--json")
    result = run_here("generate", "The cat", *options)
    completion = json.loads(result.stdout)
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    assert completion["prompt_ids"] == auto("The cat")["input_ids"]
    assert completion["text"] == auto.decode(completion["ids"])


def test_a_second_run_does_not_replace_the_first_vocabulary(corpus):
    arguments = (corpus.parent, "--vocab-size", 300, "--out", corpus.parent / "vocabulary")
    first, second = run(*arguments), run(*arguments)
    assert (first.returncode, second.returncode, second.stdout) == (0, 2, "")
    assert "already exists; name a new or an empty folder" in second.stderr
