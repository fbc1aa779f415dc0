"""Parquet in and out, for `score`, `encode` and `batch`."""

import io
import json

import numpy as np
import pytest

from gpt2np import InvalidArgumentError
from gpt2np.cli.declared_options import FlagNotation
from gpt2np.data.corpus import CorpusOptions, UnreadableFileError, read_parts
from gpt2np.data.parquet import read_rows, write_rows
from gpt2np.data.resumable import partial_folder
from gpt2np.evaluation.corpus import score_corpus
from gpt2np.evaluation.options import ScoreOptions
from gpt2np.prompts.job import continue_file
from gpt2np.prompts.prompt_file import PromptLine, read_lines
from gpt2np.tokenizer.dataset import DatasetOptions, encode_dataset

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install gpt2np[parquet]")
TEXTS = ["One fox.", "", "Two kings é🦊.", None]


@pytest.fixture
def table(tmp_path):
    rows = [{"body": text, "number": i} for i, text in enumerate(TEXTS)]
    write_rows(rows, tmp_path / "t.parquet", {"body": str, "number": int})
    return tmp_path / "t.parquet"


def rows_of(path):
    with path.open("rb") as file:
        return list(read_rows(file, path))


def test_rows(tmp_path):
    columns = {"a": int, "b": [float], "c": object, "d": [{"e": str}], "f": bool}
    rows = [{"a": i, "b": [0.1], "c": {"x": [i]}, "d": [{"e": "é"}], "f": i > 1} for i in range(3)]
    write_rows([*rows, {}], tmp_path / "x.parquet", columns)
    expected = [{**row, "c": json.dumps(row["c"])} for row in rows] + [dict.fromkeys(columns)]
    assert rows_of(tmp_path / "x.parquet") == expected


def test_score(lm, table, tmp_path):
    told = []
    lines = [json.dumps({"body": text}) for text in TEXTS if text is not None]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    for name in ("t.jsonl", "t.parquet"):
        for out in ("o.jsonl", "o.parquet"):
            options = ScoreOptions(field="body", tokens=True)
            outcome = score_corpus(lm, [tmp_path / name], tmp_path / f"{name}.{out}", options)
            told.append(outcome.n_skipped)
    assert told == [0, 0, 1, 1]
    expected = list(map(json.loads, (tmp_path / "t.jsonl.o.jsonl").read_text().splitlines()))
    assert rows_of(tmp_path / "t.jsonl.o.parquet") == expected
    found = [json.loads(line) for line in (tmp_path / "t.parquet.o.jsonl").open()]
    assert [row["document"] for row in found] == [1, 2, 3]
    for row, other in zip(found, expected, strict=True):
        assert {**row, "file": 0} == {**other, "file": 0}


def test_encode(lm, table, tmp_path):
    (tmp_path / "t.txt").write_text("One fox.<|endoftext|>Two kings é🦊.")
    rows = [{"text": "One fox."}, {"text": ""}, {"text": "Two kings é🦊."}]
    write_rows(rows, tmp_path / "u.parquet", {"text": str})
    for name in ("t.txt", "u.parquet"):
        encode_dataset([tmp_path / name], tmp_path / f"{name}.npy", lm.tokenizer)
    first, second = (np.load(tmp_path / f"{name}.npy") for name in ("t.txt", "u.parquet"))
    assert first.tolist() == second.tolist()


def test_prompts(lm, tmp_path):
    columns = {"prompt": str, "max_new_tokens": int, "id": str}
    rows = [{"prompt": "The fox", "max_new_tokens": 3, "id": "x"}, {"prompt": "A"}, {"id": "y"}]
    write_rows(rows, tmp_path / "p.parquet", columns)
    assert list(read_lines(tmp_path / "p.parquet"))[:2] == [
        PromptLine(1, "The fox", {"max_new_tokens": 3}, "x"),
        PromptLine(2, "A"),
    ]
    options = {"seed": 1, "max_new_tokens": 2, "num_return_sequences": 2}
    for out in ("o.jsonl", "o.parquet"):
        continue_file(lm, tmp_path / "p.parquet", tmp_path / out, options)
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").open()]
    found = rows_of(tmp_path / "o.parquet")
    assert [row["ids"] for row in found] == [line["ids"] for line in lines]
    assert [row["id"] for row in found] == ['"x"', None]
    assert [json.loads(row["alternatives"]) for row in found] == [
        line["alternatives"] for line in lines
    ]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_several_files_and_a_manifest(lm, tmp_path, suffix):
    """The rows of the files, in order, are those of the single file."""
    (tmp_path / "t.txt").write_text("\n".join(f"The king {i}" for i in range(7)))
    (tmp_path / "t.jsonl").write_text("\n".join(f'{{"text": "A fox {i}"}}' for i in range(7)))
    jobs = {
        "s": lambda out, n: score_corpus(lm, [tmp_path / "t.jsonl"], out, max_rows_per_file=n),
        "g": lambda out, n: continue_file(
            lm,
            tmp_path / "t.txt",
            out,
            {"seed": 1, "max_new_tokens": 2},
            max_rows_per_file=n,
        ),
        "e": lambda out, n: encode_dataset(
            [tmp_path / "t.jsonl"], out, lm.tokenizer, DatasetOptions(max_rows_per_file=n)
        ),
    }
    read = rows_of if suffix == ".parquet" else lambda path: path.read_text().splitlines()
    for name in jobs if suffix == ".parquet" else ("s", "g"):
        whole, parts = tmp_path / f"whole.{name}{suffix}", tmp_path / f"{name}{suffix}"
        jobs[name](whole, None)
        partial_folder(parts).mkdir()
        task = {"format": 2, "settings": {}, "fingerprints": {}}  # of a run killed at its end
        (partial_folder(parts) / "task.json").write_text(json.dumps(task))
        (partial_folder(parts) / "output" / parts.name).mkdir(parents=True)
        (partial_folder(parts) / "output" / parts.name / "part-00009").touch()
        jobs[name](parts, 3)
        names = [f"part-0000{i}{suffix}" for i in range(3)]
        assert sorted(path.name for path in parts.iterdir()) == ["_manifest.json", *names]
        assert [row for part in names for row in read(parts / part)] == read(whole)
        manifest = json.loads((parts / "_manifest.json").read_text())
        assert manifest["rows"] == 7 and [file["rows"] for file in manifest["files"]] == [3, 3, 1]
        assert [file["bytes"] for file in manifest["files"]] == [
            (parts / file["name"]).stat().st_size for file in manifest["files"]
        ]
        with pytest.raises(InvalidArgumentError, match="is not a file; choose another name"):
            jobs[name](parts, None)
        with pytest.raises(InvalidArgumentError, match="max_rows_per_file is 0; it must be"):
            jobs[name](parts, 0)


def test_damage(table):
    with pytest.raises(
        InvalidArgumentError, match=r"t\.parquet has no column 'text'; its col.*bo.*option field"
    ) as missing:
        list(read_parts([table], CorpusOptions()))
    assert missing.value.text(FlagNotation({"field": "--field"})).endswith("option --field")
    with pytest.raises(UnreadableFileError, match=r"t\.parquet, row 4: expected a string in"):
        list(read_parts([table], CorpusOptions(field="body")))
    content = table.read_bytes()
    for damaged in (content[:-9], content[: len(content) // 2], b""):
        with pytest.raises(InvalidArgumentError, match="cannot read x as Parquet: "):
            list(read_rows(io.BytesIO(damaged), "x"))


@pytest.mark.parametrize(("n_rows", "n_characters"), [(1, 9 << 20), (200, 1 << 20)])
def test_a_small_file_of_much_text(tmp_path, monkeypatch, n_rows, n_characters):
    """One long text, or a text that the file stores once for all rows."""
    monkeypatch.setattr("gpt2np.limits.MIN_CHECKED_EXPANSION", 8 << 20)
    path = tmp_path / "x.parquet"
    table = pyarrow.table({"text": ["a" * n_characters] * n_rows})
    pyarrow.parquet.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 40_000
    with pytest.raises(UnreadableFileError, match="set GPT2NP_MAX_COMPRESSION_RATIO"):
        list(read_parts([path], CorpusOptions()))
