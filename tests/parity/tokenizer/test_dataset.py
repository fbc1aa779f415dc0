"""Datasets equal those of other programs, and an interruption leaves no trace."""

import gzip
import json
import os
import signal
import zipfile
from functools import partial

import numpy as np
import pytest
import tokenizers
from helpers.parts import saves
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np import GPT2NPError, InvalidArgumentError, Tokenizer
from gpt2np.data import resumable
from gpt2np.data.corpus import UnreadableFileError, find_files
from gpt2np.data.resumable import JobCallbacks, partial_folder
from gpt2np.data.workers import check_processes, map_in_order
from gpt2np.tokenizer import dataset
from gpt2np.tokenizer.dataset import (
    LENGTH_DTYPE,
    DatasetOptions,
    array_lengths,
    check_output,
    encode_dataset,
)

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
    """Five files: text with two documents, the same zipped, JSON lines, a long line, an .npz."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    write(folder / "a.txt", f"First.\n{EOT}\nSecond, déjà vu  \n")
    write(folder / "b.txt.gz", gzip.compress(f"First.\n{EOT}\nSecond, déjà vu  \n".encode()))
    lines = [{"text": "Third.\n", "body": "3"}, {"text": f"Fourth {EOT} Fifth", "body": "45"}]
    write(folder / "c.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    write(folder / "d.txt", "many words, " * 200)
    np.savez(folder / "e.npz", np.array([5, 6, 7], np.int64), np.array([8], np.int32))
    return folder


DOCUMENTS = ["First.", "Second, déjà vu  "] * 2 + ["Third.\n", "Fourth ", " Fifth"]
DOCUMENTS += ["many words, " * 200]


@pytest.fixture
def expected(peer):
    end = peer.token_to_id(EOT)
    documents = [peer.encode(text).ids for text in DOCUMENTS] + [[5, 6, 7], [8]]
    return [number for ids in documents for number in (*ids, end)]


def encode(corpus, out, tokenizer, callbacks=None, force=False, **options):
    files = find_files([corpus], [out, partial_folder(out)])
    chosen = DatasetOptions(**options)
    return encode_dataset(files, out, tokenizer, chosen, callbacks, force=force)


class TestContent:
    def test_bin_as_nanogpt_reads_it(self, corpus, tmp_path, tokenizer, expected):
        made = encode(corpus, tmp_path / "x.bin", tokenizer)
        assert np.memmap(tmp_path / "x.bin", dtype=np.uint16, mode="r").tolist() == expected
        assert (made.documents, made.ids, made.dtype) == (10, len(expected), "uint16")
        assert names_in(tmp_path) == ["corpus", "x.bin"]

    def test_npy(self, corpus, tmp_path, tokenizer, expected):
        encode(corpus, tmp_path / "x.npy", tokenizer)
        array = np.load(tmp_path / "x.npy")
        assert array.tolist() == expected and array.dtype == np.uint16

    def test_other_field(self, corpus, tmp_path, tokenizer, peer):
        made = encode(corpus / "c.jsonl", tmp_path / "x.bin", tokenizer, field="body")
        ids = np.fromfile(tmp_path / "x.bin", np.uint16)
        end = peer.token_to_id(EOT)
        assert ids.tolist() == [*peer.encode("3").ids, end, *peer.encode("45").ids, end]
        assert made.documents == 2

    def test_npz_is_joined_up_to_a_number_of_characters(self, corpus, tmp_path, tokenizer, peer):
        encode(corpus, tmp_path / "x.npz", tokenizer, combine=40)
        chunks = np.load(tmp_path / "x.npz")
        assert chunks.files == [f"arr_{n}" for n in range(len(chunks.files))]
        texts = [peer.decode(chunks[name].tolist(), False) for name in chunks.files[:-2]]
        assert texts == [
            EOT.join(DOCUMENTS[:3]),
            EOT.join(DOCUMENTS[3:6]),
            EOT.join(DOCUMENTS[6:]),
        ]
        assert [chunks[name].tolist() for name in chunks.files[-2:]] == [[5, 6, 7], [8]]

    def test_npz_with_one_document_in_each_chunk(self, corpus, tmp_path, tokenizer, peer):
        encode(corpus, tmp_path / "x.npz", tokenizer, combine=1)
        chunks = np.load(tmp_path / "x.npz")
        ids = [chunks[name].tolist() for name in chunks.files]
        assert ids == [peer.encode(text).ids for text in DOCUMENTS] + [[5, 6, 7], [8]]

    def test_its_own_npz_passes_through(self, corpus, tmp_path, tokenizer):
        encode(corpus, tmp_path / "x.npz", tokenizer, combine=30)
        dates = {entry.date_time[:3] for entry in zipfile.ZipFile(tmp_path / "x.npz").infolist()}
        assert dates == {(1980, 1, 1)}  # fixed, so that equal content makes equal files
        encode(tmp_path / "x.npz", tmp_path / "y.npz", tokenizer)
        assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "y.npz").read_bytes()

    def test_uint32_for_a_large_vocabulary(self, tmp_path, gpt2_vocabulary):
        vocab = json.loads((gpt2_vocabulary / "vocab.json").read_text(encoding="utf-8"))
        vocab[EOT] = 70_000
        write(tmp_path / "vocab.json", json.dumps(vocab))
        write(tmp_path / "merges.txt", (gpt2_vocabulary / "merges.txt").read_bytes())
        large = Tokenizer.load(tmp_path)
        made = encode(write(tmp_path / "a.txt", "a b"), tmp_path / "x.bin", large)
        assert made.dtype == "uint32"
        assert np.fromfile(tmp_path / "x.bin", np.uint32).tolist() == [64, 275, 70_000]

    @pytest.mark.parametrize("suffix", [".bin", ".npz"])
    def test_neither_processes_nor_blocks_change_it(
        self, corpus, tmp_path, tokenizer, monkeypatch, suffix
    ):
        encode(corpus, tmp_path / f"x{suffix}", tokenizer)
        monkeypatch.setattr("gpt2np.data.corpus._READ_SIZE", 50)
        monkeypatch.setattr(dataset, "BATCH_SIZE", 20)
        encode(corpus, tmp_path / f"y{suffix}", tokenizer, processes=2)
        first, second = (tmp_path / f"{name}{suffix}" for name in "xy")
        assert first.read_bytes() == second.read_bytes()

    @pytest.mark.parametrize("prefix_space", [True, False])
    def test_long_documents_are_whole_where_blocks_would_change_ids(
        self, tmp_path, monkeypatch, prefix_space
    ):
        peer = tokenizers.Tokenizer(tokenizers.models.BPE())
        peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
            add_prefix_space=prefix_space, use_regex=prefix_space
        )
        text = "word.\n\n" * 100
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=300, special_tokens=[EOT], initial_alphabet=alphabet, show_progress=False
        )
        peer.train_from_iterator([text], trainer)
        peer.save(str(tmp_path / "tokenizer.json"))
        monkeypatch.setattr("gpt2np.data.corpus._READ_SIZE", 50)
        out = tmp_path / "x.bin"
        file = write(tmp_path / "a.txt", f"{text}x")
        encode(file, out, Tokenizer.load(tmp_path))
        ids = np.fromfile(out, np.uint16).tolist()
        assert ids == [*peer.encode(f"{text}x").ids, peer.token_to_id(EOT)]


class TestChunkBounds:
    @settings(deadline=None)
    @given(
        documents=st.lists(
            st.tuples(
                st.lists(st.integers(1, 30), min_size=1, max_size=3),  # characters of its parts
                st.booleans(),  # whether it is an array of its own
            ),
            min_size=1,
        ),
        combine=st.integers(1, 60),
    )
    def test_as_encode_py_of_gpt2_training(self, documents, combine):
        """Reference: join texts and separators until there are enough characters."""
        rows, chunks, raw = [], [], ""
        for lengths, alone in documents:
            if alone:
                chunks += [raw] if raw else []
                chunks.append("a" * lengths[0])
                rows.append((lengths[0] + 1, 0, True))
                raw = ""
                continue
            rows.append((sum(lengths) + 1, sum(lengths), False))
            raw += "t" * sum(lengths)
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
    def test_after_any_step_the_file_is_the_same(self, corpus, tmp_path, tokenizer, suffix):
        whole = tmp_path / f"whole{suffix}"
        _, steps = self.resume(corpus, whole, tokenizer)
        assert steps > 20
        for after in range(1, steps):
            out = tmp_path / f"x{after}{suffix}"
            done = self.interrupt(corpus, out, tokenizer, after)
            assert self.resume(corpus, out, tokenizer) == ([done], steps - after)
            assert out.read_bytes() == whole.read_bytes()

    def test_again_and_again(self, corpus, tmp_path, tokenizer):
        assert self.resume(corpus, tmp_path / "whole.bin", tokenizer)[0] == []
        for _ in range(4):
            self.interrupt(corpus, tmp_path / "x.bin", tokenizer, 5)
        self.resume(corpus, tmp_path / "x.bin", tokenizer)
        assert (tmp_path / "x.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()

    def test_what_was_not_saved_is_done_again(self, corpus, tmp_path, tokenizer):
        self.resume(corpus, tmp_path / "whole.bin", tokenizer)
        self.interrupt(corpus, tmp_path / "x.bin", tokenizer, 8)
        for name in ("stream-0", "stream-1", "progress.jsonl"):
            with (tmp_path / "x.bin.partial" / name).open("ab") as file:
                file.write(b"half")
        resumed, _ = self.resume(corpus, tmp_path / "x.bin", tokenizer)
        assert len(resumed) == 1
        assert (tmp_path / "x.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()

    def test_lost_content_is_done_again(self, corpus, tmp_path, tokenizer):
        self.resume(corpus, tmp_path / "whole.bin", tokenizer)
        self.interrupt(corpus, tmp_path / "x.bin", tokenizer, 8)
        partial = tmp_path / "x.bin.partial"
        cut = saves(partial)[5][1][0] - 1
        os.truncate(partial / "stream-0", cut)
        done = [position[2] for position, sizes, *_ in saves(partial) if sizes[0] <= cut][-1]
        assert self.resume(corpus, tmp_path / "x.bin", tokenizer)[0] == [done]
        assert (tmp_path / "x.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()

    def test_a_changed_file_is_named(self, corpus, tmp_path, tokenizer):
        self.interrupt(corpus, tmp_path / "x.bin", tokenizer, 20)
        write(corpus / "d.txt", f"other{EOT}words, " * 200)
        before = saves(tmp_path / "x.bin.partial")
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=r"d\.txt has changed; .* --force"):
                encode(corpus, tmp_path / "x.bin", tokenizer)
            assert saves(tmp_path / "x.bin.partial") == before
        self.resume(corpus, tmp_path / "whole.bin", tokenizer)
        resumed, _ = self.resume(corpus, tmp_path / "x.bin", tokenizer, force=True)
        assert resumed == [[f"{corpus / 'd.txt'} has changed"]]
        assert (tmp_path / "x.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()

    def test_files_at_the_end_may_be_added_and_errors_skipped(self, corpus, tmp_path, tokenizer):
        done = self.interrupt(corpus, tmp_path / "x.bin", tokenizer, 8)
        write(corpus / "z.txt", "one more")
        write(corpus / "zz.txt", b"\xff")
        self.resume(corpus, tmp_path / "whole.bin", tokenizer, skip_errors=True)
        found = self.resume(corpus, tmp_path / "x.bin", tokenizer, skip_errors=True)
        assert found[0] == [done]
        assert (tmp_path / "x.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"field": "body"}, "field was 'text', is 'body'"),
            ({"special": "text"}, "special was 'error', is 'text'"),
            ("vocabulary", "the vocabulary has changed"),
        ],
    )
    def test_with_other_arguments_it_is_refused(self, corpus, tmp_path, tokenizer, change, told):
        self.interrupt(corpus, tmp_path / "x.bin", tokenizer, 8)
        if change == "vocabulary":
            write(tmp_path / "merges.txt", "#version: 0.2\n")
            small = {token: i for token, i in tokenizer.vocabulary.ids.items() if len(token) == 1}
            write(tmp_path / "vocab.json", json.dumps(small | {EOT: 4000}))
            tokenizer, change = Tokenizer.load(tmp_path), {}
        self.resume(corpus, tmp_path / "whole.bin", tokenizer, **change)
        with pytest.raises(InvalidArgumentError, match=f"unfinished job, but {told}; undo"):
            encode(corpus, tmp_path / "x.bin", tokenizer, **change)
        resumed, _ = self.resume(corpus, tmp_path / "x.bin", tokenizer, force=True, **change)
        assert resumed == [[told]]
        assert (tmp_path / "x.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()

    def test_over_a_damaged_file(self, corpus, tmp_path, tokenizer):
        """Nothing of a damaged file is encoded, although its first batches could be."""
        whole = tmp_path / "whole.bin"
        _, fewer_steps = self.resume(corpus, whole, tokenizer)
        write(corpus / "bad.txt", b"many good words " * 50 + b"\xff")
        _, steps = self.resume(corpus, tmp_path / "other.bin", tokenizer, skip_errors=True)
        assert steps == fewer_steps + 1
        assert (tmp_path / "other.bin").read_bytes() == whole.read_bytes()
        for after in range(1, steps):
            self.interrupt(corpus, tmp_path / "x.bin", tokenizer, after, skip_errors=True)
            self.resume(corpus, tmp_path / "x.bin", tokenizer, skip_errors=True)
            assert (tmp_path / "x.bin").read_bytes() == whole.read_bytes()
            (tmp_path / "x.bin").unlink()

    def test_after_a_damaged_file_was_repaired(self, corpus, tmp_path, tokenizer):
        bad = write(corpus / "bad.txt", b"many good words " * 50 + b"\xff")
        with pytest.raises(UnreadableFileError):
            encode(corpus, tmp_path / "x.bin", tokenizer)
        write(bad, b"few words")
        assert self.resume(corpus, tmp_path / "x.bin", tokenizer)[0] != []
        self.resume(corpus, tmp_path / "whole.bin", tokenizer)
        assert (tmp_path / "x.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()

    @pytest.mark.parametrize("change", ["edit", "touch"])
    def test_a_single_file_that_changes_when_it_is_half_read(self, tmp_path, tokenizer, change):
        file, out = write(tmp_path / "a.txt", f"many{EOT}words, " * 200), tmp_path / "x.bin"
        self.interrupt(file, out, tokenizer, 3)
        if change == "edit":
            write(file, f"other{EOT}words, " * 200)
        else:
            os.utime(file, (1, 1))
        before = saves(tmp_path / "x.bin.partial")
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match=r"a\.txt has changed; .* --force"):
                encode(file, out, tokenizer)
            assert saves(tmp_path / "x.bin.partial") == before
        told = self.resume(file, out, tokenizer, force=True)[0]
        assert told == [[f"{file} has changed"]]

    @pytest.mark.parametrize("change", ["append", "vanish"])
    def test_a_file_that_changes_during_the_run(self, corpus, tmp_path, tokenizer, change):
        def progress(done, n_tokens):
            if change == "vanish":
                (corpus / "a.txt").unlink(missing_ok=True)
            else:
                write(corpus / "a.txt", f"First.\n{EOT}\nSecond, déjà vu  \nand more")

        out = tmp_path / "x.bin"
        with pytest.raises(GPT2NPError, match=r"a\.txt has changed while it was read"):
            encode(corpus, out, tokenizer, JobCallbacks(on_progress=progress))
        assert not out.exists()
        with pytest.raises(InvalidArgumentError, match=r"(a|b)\.txt.* has changed; undo"):
            encode(corpus, out, tokenizer)
        encode(corpus, out, tokenizer, force=True)
        encode(corpus, tmp_path / "whole.bin", tokenizer)
        assert out.read_bytes() == (tmp_path / "whole.bin").read_bytes()

    def test_a_linked_output_is_written_through(self, corpus, tmp_path, tokenizer):
        (tmp_path / "disk").mkdir()
        write(tmp_path / "disk" / "y.bin", "old")
        (tmp_path / "x.bin").symlink_to("disk/y.bin")
        encode(corpus, tmp_path / "x.bin", tokenizer, force=True)
        encode(corpus, tmp_path / "whole.bin", tokenizer)
        assert (tmp_path / "x.bin").is_symlink() and names_in(tmp_path / "disk") == ["y.bin"]
        assert (tmp_path / "disk" / "y.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()


class TestErrors:
    def test_unreadable_file(self, corpus, tmp_path, tokenizer):
        write(corpus / "bad.txt", b"abc\xff")
        with pytest.raises(UnreadableFileError, match=r"bad\.txt, document 1 is not UTF-8"):
            encode(corpus, tmp_path / "x.bin", tokenizer)
        assert names_in(tmp_path) == ["corpus"]

    @pytest.mark.parametrize("processes", [1, 2])
    def test_skipped_files_leave_nothing(self, corpus, tmp_path, tokenizer, expected, processes):
        bad = [
            ("aa.txt", b"good words" + b"\xff"),
            ("bb.npz", b"no zip"),
            ("cc.jsonl", b'{"text": "good"}\n{"text": 3}\n'),
            ("dd.txt.gz", gzip.compress(b"good " * 1000)[:-9]),
        ]
        for name, content in bad:
            write(corpus / name, content)
        np.savez(corpus / "f.npz", np.array([5]), np.array([4096]))
        np.savez(corpus / "g.npz", np.array([5.0]))
        np.savez(corpus / "h.npz", np.array([[5]]))
        np.savez(corpus / "i.npz", np.array(["x"], object))
        np.save((corpus / "j.npz").open("wb"), np.array([5]))
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
        names = [name for name, _ in bad] + [f"{letter}.npz" for letter in "fghij"]
        assert len(told) == len(names)
        for name, message in zip(names, told, strict=True):
            assert f"{corpus / name}" in message
        assert "no id 4096" in told[4] and "float64" in told[5]

    def test_no_text(self, tmp_path, tokenizer):
        file = write(tmp_path / "a.txt", f"\n{EOT}\n")
        with pytest.raises(InvalidArgumentError, match="the files have no text"):
            encode(file, tmp_path / "x.bin", tokenizer)
        assert names_in(tmp_path) == ["a.txt"]

    def test_without_an_end_of_text(self, tmp_path, bundled, corpus):
        vocab = json.loads((bundled / "vocab.json").read_text(encoding="utf-8"))
        del vocab[EOT]
        write(tmp_path / "vocab.json", json.dumps(vocab))
        write(tmp_path / "merges.txt", (bundled / "merges.txt").read_bytes())
        with pytest.raises(InvalidArgumentError, match=r"has no <\|endoftext\|>"):
            encode(corpus, tmp_path / "x.bin", Tokenizer.load(tmp_path))

    def test_options(self):
        for name in ("combine", "processes"):
            with pytest.raises(InvalidArgumentError, match=f"{name} is 0"):
                DatasetOptions(**{name: 0})

    def test_output(self, tmp_path):
        with pytest.raises(InvalidArgumentError, match=r"one of \.npz, \.npy, \.bin"):
            check_output(tmp_path / "x.txt")
        with pytest.raises(InvalidArgumentError, match="no does not exist"):
            check_output(tmp_path / "no" / "x.bin")

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


@pytest.mark.parametrize("processes", [0, 99_999])
def test_a_number_of_processes_that_no_machine_can_run(processes):
    with pytest.raises(InvalidArgumentError, match=f"processes is {processes}; it must be"):
        check_processes(processes)


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
