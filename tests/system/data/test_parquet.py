"""Parquet in and out, for `score`, `encode` and `batch`."""

import csv
import io
import json

import numpy as np
import pytest

from gpt2np import InvalidArgumentError
from gpt2np.data.corpus import UnreadableFileError, read_corpus_texts
from gpt2np.data.options import ScoreOptions
from gpt2np.data.parquet import read_rows, write_rows
from gpt2np.evaluation.corpus import score_corpus
from gpt2np.prompts import PromptLine, continue_file, read_prompts
from gpt2np.tokenizer.dataset import encode_dataset

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install gpt2np[parquet]")
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
        assert row.pop("number") == row["document"] - 1
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
    columns = {"prompt": str, "top_k": int, "id": str}
    rows = [{"prompt": "The fox", "top_k": 3, "id": "x"}, {"prompt": "A"}, {"id": "y"}]
    write_rows(rows, tmp_path / "p.parquet", columns)
    assert list(read_prompts(tmp_path / "p.parquet"))[:2] == [
        PromptLine(1, "The fox", {}, "x", {"top_k": 3}),
        PromptLine(2, "A", columns={"top_k": None}),
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


@pytest.mark.parametrize("source", [".jsonl", ".csv", ".parquet"])
def test_columns_of_the_input_are_kept(lm, tmp_path, source):
    rows = [{"q": f"The king {i}", "number": i, "file": "x"} for i in range(3)]
    path = tmp_path / f"in{source}"
    if source == ".parquet":
        write_rows(rows, path, {"q": str, "number": int, "file": str})
    elif source == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text("q,number,file\n" + "".join(f"The king {i},{i},x\n" for i in range(3)))
    for suffix in (".jsonl", ".csv", ".parquet"):
        scores, texts = tmp_path / f"s{suffix}", tmp_path / f"t{suffix}"
        score_corpus(lm, [path], scores, ScoreOptions(field="q"))
        continue_file(lm, path, texts, {"seed": 1, "max_new_tokens": 2}, field="q")
        for out, renamed in ((scores, "input_file"), (texts, "file")):
            if suffix == ".parquet":
                found = rows_of(out)
            elif suffix == ".jsonl":
                found = [json.loads(line) for line in out.open()]
            else:
                with out.open(newline="") as file:
                    found = list(csv.DictReader(file))
            assert [row["q"] for row in found] == [row["q"] for row in rows]
            assert [int(row["number"]) for row in found] == [0, 1, 2]
            assert [row[renamed] for row in found] == ["x"] * 3
    assert float(found[0]["seed"]) == 1


def test_damage(table):
    with pytest.raises(
        UnreadableFileError, match=r"t\.parquet has no column 'text'; set `field` to .*body"
    ):
        list(read_corpus_texts([table]))
    with pytest.raises(UnreadableFileError, match=r"t\.parquet, row 4: expected a string in"):
        list(read_corpus_texts([table], "body"))
    content = table.read_bytes()
    for damaged in (content[:-9], content[: len(content) // 2], b""):
        with pytest.raises(InvalidArgumentError, match="cannot read x as Parquet: "):
            list(read_rows(io.BytesIO(damaged), "x"))
