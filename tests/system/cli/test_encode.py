"""`python -m gpt2np encode` as a user runs it."""

import os
import signal
import subprocess

import numpy as np
import pytest
import tiktoken
from helpers.command_line import run_here
from helpers.parts import saves
from helpers.patched_cli import patched_cli, small_steps
from helpers.processes import wait_until, wait_while_running

from gpt2np import Tokenizer
from gpt2np.tokenizer.pre_tokenizer import HF_GPT2_PATTERN

EOT = "<|endoftext|>"
SMALL_PARTS = [*patched_cli(small_steps(0.5)), "encode"]  # here ten times


def encode(*arguments, model="bundled"):
    return run_here("encode", *arguments, "--model", model)


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    (folder / "b.txt").write_text("two\n")
    (folder / "a.txt").write_text("one")
    (folder / "deep" / "c.txt").write_text("three")
    return folder


@pytest.fixture(scope="module")
def peer(gpt2_vocabulary):
    """tiktoken with GPT-2's vocabulary."""
    table = Tokenizer.load(gpt2_vocabulary).vocabulary.token_bytes
    ranks = {token: number for number, token in table.items() if number < 50256}
    return tiktoken.Encoding(
        "gpt2", pat_str=HF_GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={EOT: 50256}
    )


@pytest.fixture(scope="module")
def stories(data, tmp_path_factory):
    """Return a text of ten small batches."""
    file = tmp_path_factory.mktemp("stories") / "stories.txt"
    file.write_bytes((data / "stories" / "train.txt").read_bytes()[:600_000])
    return file


@pytest.fixture(scope="module")
def expected(stories, peer):
    """Ids of the stories as computed by nanoGPT's prepare.py."""
    documents = (text.strip("\r\n") for text in stories.read_text(encoding="utf-8").split(EOT))
    ids = peer.encode_ordinary_batch([text for text in documents if text])
    return np.concatenate([np.array([*document, peer.eot_token], np.uint16) for document in ids])


class TestOutput:
    def test_a_folder_in_stable_order(self, corpus, tmp_path, bundled):
        result = encode(corpus, tmp_path / "x.bin")
        assert (result.returncode, result.stdout) == (0, "")
        assert result.stderr.splitlines() == [
            "vocabulary: bundled",
            f"3 documents, {len(np.fromfile(tmp_path / 'x.bin', np.uint16))} ids (uint16) in "
            f"{tmp_path / 'x.bin'}",
        ]
        text = Tokenizer.load(bundled).decode(np.fromfile(tmp_path / "x.bin", np.uint16))
        assert text == f"one{EOT}two{EOT}three{EOT}"

    def test_a_pattern_and_options(self, corpus, tmp_path, bundled):
        result = encode(corpus / "**" / "[ac].txt", tmp_path / "x.npz", "--combine", "1")
        assert result.returncode == 0
        chunks = np.load(tmp_path / "x.npz")
        tokenizer = Tokenizer.load(bundled)
        assert [tokenizer.decode(chunks[name]) for name in chunks.files] == ["one", "three"]

    def test_as_nanogpt_with_tiktoken(self, stories, expected, tmp_path, gpt2_vocabulary):
        out = tmp_path / "x.bin"
        command = [*patched_cli(small_steps(0)), "encode", str(stories), str(out)]
        command += ["--processes", "2", "--model", str(gpt2_vocabulary)]
        result = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120)
        assert result.returncode == 0, result.stderr
        assert np.array_equal(np.memmap(out, dtype=np.uint16, mode="r"), expected)
        assert len(expected) > 120_000


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
class TestInterruption:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
    def test_no_process_is_left_behind(self, stories, tmp_path, number):
        """Of a run that has finished a part."""
        options = ["--model", "bundled", "--processes", "2"]
        command = [*SMALL_PARTS, str(stories), str(tmp_path / "x.bin"), *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
        wait_while_running(process, lambda: saves(tmp_path / "x.bin.partial"))
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.kill()
        _, stderr = process.communicate(timeout=120)  # returns when all have closed stderr
        assert b"Traceback" not in stderr
        wait_until(lambda: not self.is_alive(process.pid), seconds=60)

    def is_alive(self, group):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        return True


def test_a_file_that_is_no_text_is_skipped_if_asked_for(corpus, tmp_path):
    (corpus / "bb.txt").write_bytes(b"abc\xff")
    result = encode(corpus, tmp_path / "x.bin", "--skip-errors")
    assert result.returncode == 0 and "3 documents" in result.stderr
    assert f"skipped: {corpus / 'bb.txt'}, document 1 is not UTF-8" in result.stderr


def test_a_file_with_the_name_of_the_partial_folder_is_kept(corpus, tmp_path):
    (tmp_path / "x.bin.partial").write_text("kept")
    result = encode(corpus, tmp_path / "x.bin")
    assert result.returncode == 1 and "x.bin.partial is not a folder" in result.stderr
    assert (tmp_path / "x.bin.partial").read_text() == "kept"
