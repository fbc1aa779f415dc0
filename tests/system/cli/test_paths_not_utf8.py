"""Every command with its model, input and output in a folder whose name is not UTF-8."""

import gzip
import json
import os
import urllib.request
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from helpers.command_line import run_here
from helpers.random_models import save_byte_model
from helpers.server import running_server
from make_ngram_table import build_table, count_ngrams, save_table

from gpt2np import Tokenizer
from gpt2np.cli.main import COMMANDS
from gpt2np.generation.ngram_table import vocabulary_fingerprint

NAME = os.fsdecode(b"a \xff\xed\xa0\x80 caf\xc3\xa9")  # neither byte begins a character of UTF-8
TRAIN = "--n-layer 1 --n-head 1 --n-embd 8 --n-positions 8 --max-steps 2 --warmup-steps 1"

# {D} is the folder; the command must write the files whose names begin with "new".
COMMAND_LINES = """
generate --model {D} -n 3 ab
generate --model {D} -n 3 --draft {D}/draft.safetensors --tokenizer {D}/tokenizer.json ab
batch {D}/in.txt --model {D} -n 3 --out {D}/new.jsonl
batch {D}/p.jsonl --model {D} -n 3 --out {D}/new.parquet
batch {D}/p.parquet --model {D} -n 3 --out {D}/new.jsonl
parity record --model {D} --prompt ab --points ln_f {D}/new.safetensors
parity check --model {D} {D}/reference.safetensors {D}/reference.safetensors --json
chat --model {D} --chat-template {D}/t.jinja --max-new-tokens 3
tokenize --model {D} ab
decode --model {D} 97
encode --model {D} {D}/in.txt {D}/in.jsonl {D}/in.csv {D}/in.parquet {D}/in.txt.gz {D}/new.bin
encode --model {D} {D}/in.txt {D}/new.npy --processes 2
encode --model {D} {D}/texts {D}/new.bin --skip-errors
train-tokenizer {D}/in.txt --vocab-size 260 --out {D}/new
train --model {D} {D}/ids.bin {D}/new TRAIN
score --model {D} {D}/in.txt
score --model {D} {D}/in.txt {D}/in.jsonl --out {D}/new.jsonl
score --model {D} {D}/in.txt {D}/in.jsonl --out {D}/new.parquet
score --model {D} {D}/texts --out {D}/new.jsonl
trace --model {D} ab
explain --model {D} ab -o {D}/new.html
info {D}
info {D} --json
convert {D} {D}/new
"""
LINES = [line.replace("TRAIN", TRAIN) for line in COMMAND_LINES.strip().splitlines()]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A folder with a model and a file of every kind."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("paths") / NAME
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has only names of UTF-8")
    save_byte_model(folder)
    texts = ["ab aa 12", "a 漢 b", "12 12 12"]
    (folder / "in.txt").write_text("\n".join(texts))
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (folder / "p.jsonl").write_text("".join(json.dumps({"prompt": t}) + "\n" for t in texts))
    (folder / "in.csv").write_text("\n".join(["text", *texts]))
    for name, column in (("in.parquet", "text"), ("p.parquet", "prompt")):
        with (folder / name).open("wb") as file:
            parquet.write_table(pyarrow.table({column: texts}), file)
    (folder / "in.txt.gz").write_bytes(gzip.compress(texts[0].encode()))
    (folder / "texts").mkdir()
    (folder / "texts" / os.fsdecode(b"\xfe.txt")).write_text(texts[0])
    (folder / "texts" / os.fsdecode(b"\xfd.txt")).write_bytes(b"\xff")
    np.arange(200, dtype=np.uint16).tofile(folder / "ids.bin")
    (folder / "t.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    counts = count_ngrams([97, 98, 32] * 9, 256)
    tokens = Tokenizer.load(folder).vocabulary.token_bytes
    table = build_table(counts, 256, vocabulary_fingerprint(tokens, 256), 9)
    save_table(table, folder / "draft.safetensors")
    reference = ("--prompt", "ab", "--points", "ln_f", folder / "reference.safetensors")
    assert run_here("parity", "record", "--model", folder, *reference).returncode == 0
    return folder


@pytest.fixture
def folder(original, tmp_path):
    """A copy of the folder, so that results of other tests are not there."""
    return copytree(original, tmp_path / NAME)


def printed(folder):
    """Return a path as stdout and stderr must show it, which `\\udcff` of JSON does, too."""
    return str(folder).encode(errors="backslashreplace").decode()


def test_every_command_is_tested():
    assert {line.split()[0] for line in LINES} == set(COMMANDS) - {"serve", "bench"}


@pytest.mark.parametrize("line", LINES)
def test_command(folder, tmp_path, line):
    plain = copytree(folder, tmp_path / "plain")
    runs = []
    for place in (plain, folder):
        words = [word.replace("{D}", str(place)) for word in line.split()]
        runs.append(run_here(*words, stdin="hi\n" if words[0] == "chat" else ""))
        assert runs[-1].returncode == (1 if line.startswith("score") and "texts" in line else 0), (
            runs[-1].stderr
        )
        assert "Traceback" not in runs[-1].stderr
        assert not [*place.glob("*.partial")]
    new = [{p.relative_to(place) for p in place.rglob("*")} for place in (plain, folder)]
    assert new[0] == new[1]
    expected, got = runs
    for stream in ("stdout", "stderr"):
        n_names = getattr(expected, stream).count(str(plain))
        # JSON has another backslash where an escape is part of a name, instead of a path.
        assert getattr(got, stream).replace("\\\\", "\\").count(printed(folder)) == n_names
    if "--json" in words and "folder" in (content := json.loads(got.stdout)):
        assert Path(content["folder"]).is_relative_to(folder)


def test_rows_name_their_files(folder):
    out = folder / "new.jsonl"
    assert run_here("score", folder / "in.txt", "--model", folder, "--out", out).returncode == 0
    (row,) = map(json.loads, out.read_bytes().decode().splitlines())
    assert row["file"] == str(folder / "in.txt")


def test_explain_page_is_utf8(folder):
    out = folder / "new.html"
    assert run_here("explain", "--model", folder, "ab", "-o", out).returncode == 0
    page = out.read_bytes().decode()
    assert json.dumps(printed(folder.name))[1:-1] in page
    assert str(folder.parent) not in page  # others may read the page


def test_server(folder):
    with running_server(folder, "--model", str(folder), "--threads", "1") as server:
        with urllib.request.urlopen(f"{server.url}/v1/models") as reply:
            (model,) = json.load(reply)["data"]
        assert model["id"] == printed(folder)
        body = json.dumps({"model": model["id"], "prompt": "ab", "max_tokens": 3}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{server.url}/v1/completions", body, headers)
        with urllib.request.urlopen(request) as reply:
            assert json.load(reply)["model"] == model["id"]
