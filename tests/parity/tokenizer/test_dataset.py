"""Datasets equal those of other programs, and an interruption leaves no trace."""

import gzip
import json
import os
import re
import signal
import zipfile
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tokenizers
from helpers.parts import saves
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np import InvalidArgumentError, Tokenizer
from gpt2np.data import resumable
from gpt2np.data.corpus import find_files
from gpt2np.data.resumable import JobCallbacks, partial_folder
from gpt2np.data.workers import map_in_order
from gpt2np.tokenizer import dataset
from gpt2np.tokenizer.dataset import LENGTH_DTYPE, DatasetOptions, array_lengths, encode_dataset

EOT = "<|endoftext|>"


@pytest.fixture(scope="module")
def tokenizer(bundled):
    return Tokenizer.load(bundled)


@pytest.fixture(scope="module")
def peer(bundled):
    return tokenizers.ByteLevelBPETokenizer(
        str(bundled / "vocab.json"), str(bundled / "merges.txt")
    )


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def corpus(tmp_path):
    """Four files: text with two documents, the same zipped, JSON lines, a long line."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    write(folder / "a.txt", f"First.\n{EOT}\nSecond, déjà vu  \n")
    write(folder / "b.txt.gz", gzip.compress(f"First.\n{EOT}\nSecond, déjà vu  \n".encode()))
    lines = [{"text": "Third.\n", "body": "3"}, {"text": f"Fourth {EOT} Fifth", "body": "45"}]
    write(folder / "c.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    write(folder / "d.txt", "many words, " * 200)
    return folder


DOCUMENTS = ["First.", "Second, déjà vu  "] * 2 + ["Third.\n", "Fourth ", " Fifth"]
DOCUMENTS += ["many words, " * 200]


@pytest.fixture
def expected(peer):
    return with_end(peer, *(peer.encode(text).ids for text in DOCUMENTS))


def encode(corpus, out, tokenizer, callbacks=None, force=False, **options):
    files = find_files([corpus], [out, partial_folder(out)])
    chosen = DatasetOptions(**options)
    return encode_dataset(files, out, tokenizer, chosen, callbacks, force=force)


def same(*paths):
    return len({path.read_bytes() for path in paths}) == 1


def with_end(peer, *sequences):
    return [number for ids in sequences for number in (*ids, peer.token_to_id(EOT))]


class TestContent:
    def test_bin_as_nanogpt_reads_it(self, corpus, tmp_path, tokenizer, expected):
        made = encode(corpus, tmp_path / "x.bin", tokenizer)
        assert np.memmap(tmp_path / "x.bin", dtype=np.uint16, mode="r").tolist() == expected
        encode(corpus, tmp_path / "x.npy", tokenizer)
        assert np.load(tmp_path / "x.npy").tolist() == expected
        assert (made.documents, made.ids, made.dtype) == (8, len(expected), "uint16")
        assert names_in(tmp_path) == ["corpus", "x.bin", "x.npy"]

    def test_other_field(self, corpus, tmp_path, tokenizer, peer):
        made = encode(corpus / "c.jsonl", tmp_path / "x.bin", tokenizer, field="body")
        ids = np.fromfile(tmp_path / "x.bin", np.uint16).tolist()
        assert ids == with_end(peer, peer.encode("3").ids, peer.encode("45").ids)
        assert made.documents == 2

    @pytest.mark.parametrize(
        ("combine", "joined"),
        [(1, DOCUMENTS), (40, [EOT.join(DOCUMENTS[a:b]) for a, b in ((0, 3), (3, 6), (6, None))])],
    )
    def test_npz_is_joined_up_to_a_number_of_characters(
        self, corpus, tmp_path, tokenizer, peer, combine, joined
    ):
        made = encode(corpus, tmp_path / "x.npz", tokenizer, combine=combine)
        chunks = np.load(tmp_path / "x.npz")
        assert chunks.files == [f"arr_{n}" for n in range(len(joined))]
        texts = [chunks[name].tolist() for name in chunks.files]
        assert [peer.decode(ids, False) for ids in texts] == joined
        assert made.ids == sum(map(len, texts))  # 30 instead of 29 were printed
        dates = {entry.date_time[:3] for entry in zipfile.ZipFile(tmp_path / "x.npz").infolist()}
        assert dates == {(1980, 1, 1)}  # fixed, so that equal content makes equal files

    @pytest.mark.parametrize("suffix", [".bin", ".npz"])
    def test_neither_processes_nor_blocks_change_it(
        self, corpus, tmp_path, tokenizer, monkeypatch, suffix
    ):
        encode(corpus, tmp_path / f"x{suffix}", tokenizer)
        monkeypatch.setattr("gpt2np.data.corpus._READ_SIZE", 50)
        monkeypatch.setattr(dataset, "BATCH_SIZE", 20)
        encode(corpus, tmp_path / f"y{suffix}", tokenizer, processes=2)
        assert same(tmp_path / f"x{suffix}", tmp_path / f"y{suffix}")


class TestChunkBounds:
    @settings(deadline=None)
    @given(
        documents=st.lists(st.integers(1, 90), min_size=1),  # their characters
        combine=st.integers(1, 60),
    )
    def test_as_encode_py_of_gpt2_training(self, documents, combine):
        """Reference: join texts and separators until there are enough characters."""
        rows, chunks, raw = [], [], ""
        for length in documents:
            rows.append((length + 1, length))
            raw += "t" * length
            if len(raw) >= combine:
                chunks.append(raw)
                raw = ""
            else:
                raw += EOT
        chunks += [raw] if raw else []
        lengths = [len(chunk.removesuffix(EOT).replace(EOT, "e")) for chunk in chunks]
        found = array_lengths(np.array(rows, LENGTH_DTYPE), combine)
        assert [length - 1 for length in found] == lengths


class Interrupted(BaseException):
    """Simulates the death of the process; no handler catches it."""


class TestResuming:
    @pytest.fixture(autouse=True)
    def small_steps(self, corpus, monkeypatch):
        write(corpus / "d.txt", "many words, " * 200 + EOT + EOT.join(["More."] * 80))
        monkeypatch.setattr("gpt2np.data.corpus._READ_SIZE", 50)
        monkeypatch.setattr(dataset, "BATCH_SIZE", 20)
        monkeypatch.setattr(resumable, "SAVE_SECONDS", 0)

    def interrupt(self, corpus, out, tokenizer, after, **options):
        calls = []

        def progress(done, n_tokens):
            calls.append(done)
            if len(calls) == after:
                raise Interrupted

        with pytest.raises(Interrupted):
            encode(corpus, out, tokenizer, JobCallbacks(on_progress=progress), **options)
        assert not out.exists()
        return calls[-1]

    def resume(self, corpus, out, tokenizer, **options):
        """Return where the run resumed, what had changed, and its number of steps."""
        resumed, steps = [], []
        callbacks = JobCallbacks(
            resumed.append, resumed.append, on_progress=lambda done, n_tokens: steps.append(done)
        )
        encode(corpus, out, tokenizer, callbacks, **options)
        assert not out.with_name(f"{out.name}.partial").exists()
        return resumed, len(steps)

    @pytest.mark.parametrize("suffix", [".bin", ".npy", ".npz"])
    @pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
    def test_after_any_step_the_file_is_the_same(self, corpus, tmp_path, tokenizer, suffix, every):
        whole = tmp_path / f"whole{suffix}"
        _, steps = self.resume(corpus, whole, tokenizer)
        assert steps > 20
        for after in range(1, steps, every):
            out = tmp_path / f"x{after}{suffix}"
            done = self.interrupt(corpus, out, tokenizer, after)
            assert self.resume(corpus, out, tokenizer) == ([done], steps - after)
            assert same(out, whole)

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ("edit", r"/corpus/d\.txt has changed"),
            ("touch", r"/corpus/d\.txt has changed"),
            ({"field": "body"}, "`field` was 'text', is 'body'"),
            ({"special": "text"}, "`special` was 'error', is 'text'"),
            ("vocabulary", "the vocabulary has changed"),
        ],
    )
    def test_after_a_change_it_is_refused(self, corpus, tmp_path, tokenizer, change, told):
        """Also of a file that is half read."""
        out, options = tmp_path / "x.bin", {}
        self.interrupt(corpus, out, tokenizer, 20)
        if change == "edit":
            write(corpus / "d.txt", f"other{EOT}words, " * 200)
        elif change == "touch":
            os.utime(corpus / "d.txt", (1, 1))
        elif change == "vocabulary":
            tokenizer = Tokenizer(replace(tokenizer.vocabulary, ranks={}))
        else:
            options = change
        before = saves(tmp_path / "x.bin.partial")
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=f"{told}; .* `force=True`"):
                encode(corpus, out, tokenizer, **options)
            assert saves(tmp_path / "x.bin.partial") == before
        [[found]], _ = self.resume(corpus, out, tokenizer, force=True, **options)
        assert re.search(told, found)
        self.resume(corpus, tmp_path / "whole.bin", tokenizer, **options)
        assert same(out, tmp_path / "whole.bin")


class TestErrors:
    @pytest.mark.parametrize("processes", [1, 2])
    def test_skipped_files_leave_nothing(self, corpus, tmp_path, tokenizer, expected, processes):
        bad = [
            ("aa.txt", b"good words" + b"\xff"),
            ("cc.jsonl", b'{"text": "good"}\n{"text": 3}\n'),
            ("dd.txt.gz", gzip.compress(b"good " * 1000, mtime=0)[:-9]),
        ]
        for name, content in bad:
            write(corpus / name, content)
        told = []
        encode(
            corpus,
            tmp_path / "x.bin",
            tokenizer,
            JobCallbacks(on_skip=lambda error: told.append(str(error))),
            skip_errors=True,
            processes=processes,
        )
        assert np.fromfile(tmp_path / "x.bin", np.uint16).tolist() == expected
        for (name, _), message in zip(bad, told, strict=True):
            assert f"{corpus / name}" in message

    def test_a_vocabulary_without_end_of_text(self, corpus, tmp_path, tokenizer):
        without = Tokenizer(replace(tokenizer.vocabulary, added_tokens=()))
        with pytest.raises(InvalidArgumentError, match=r"has no <\|endoftext\|>"):
            encode(corpus, tmp_path / "x.bin", without)
        assert names_in(tmp_path) == ["corpus"]

    def test_the_output_is_no_input(self, corpus, tokenizer, expected):
        out = corpus / "e2.bin"
        out.write_bytes(b"\xff")
        partial = corpus / "e2.bin.partial"
        partial.mkdir()
        (partial / "new").write_bytes(b"\xff")
        encode(corpus, out, tokenizer, force=True)
        assert np.fromfile(out, np.uint16).tolist() == expected
        with pytest.raises(InvalidArgumentError, match="no file to read, apart from the output"):
            find_files([corpus], [corpus])


def test_map_in_order_takes_only_a_few_items_ahead():
    taken = []

    def items():
        for number in range(50):
            taken.append(number)
            yield number

    results = map_in_order(partial(partial, str), items(), 2)
    assert next(results) == (0, "0") and len(taken) < 10
    assert list(results) == [(number, str(number)) for number in range(1, 50)]


def _handler_of_ctrl_c(_):
    return signal.getsignal(signal.SIGINT)


def test_ctrl_c_is_left_to_the_parent():
    assert next(map_in_order(partial(partial, _handler_of_ctrl_c), [0], 2)) == (0, signal.SIG_IGN)
