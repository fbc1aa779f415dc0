"""Reading a corpus: every kind of file, and damaged files."""

import gzip
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2np import InvalidArgumentError
from gpt2np.data import corpus
from gpt2np.data.corpus import UnreadableFileError, find_files, read_corpus_texts, read_documents
from gpt2np.data.corpus_job import corpus_job, read_batches
from gpt2np.data.resumable import START, Results
from gpt2np.limits import Limits

EOT = "<|endoftext|>"


def documents(*paths, **options):
    return list(read_corpus_texts(find_files(paths), **options))


def write(path, content):
    """Write a file, compressed if its name ends in gz and the content is not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content if isinstance(content, bytes) else content.encode()
    is_packed = path.suffix == ".gz" and not content.startswith((b"\x1f\x8b", b"no gzip"))
    path.write_bytes(gzip.compress(content) if is_packed else content)
    return path


class TestFindFiles:
    def test_capitals_in_a_suffix_are_no_other_kind(self, tmp_path):
        line = write(tmp_path / "A.JSONL", '{"text": "one"}\n')
        row = write(tmp_path / "t.CSV", "id,text\n1,two\n")
        assert documents(line, row) == ["one", "two"] and find_files([tmp_path]) == [line, row]

    def test_sorted_and_each_once(self, tmp_path):
        for name in ("b.txt", "a.txt", "deep/er/c.txt", "deep/.hidden/d.txt", ".e.txt"):
            write(tmp_path / name, name)
        expected = [tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "deep/er/c.txt"]
        assert find_files([tmp_path]) == expected
        paths = [tmp_path / "deep", f"{tmp_path}/**/*.txt", tmp_path / "deep/../b.txt", tmp_path]
        assert sorted(file.resolve() for file in find_files(paths)) == expected
        assert len(find_files([f"{tmp_path}/*.txt", tmp_path / "b.txt"])) == 2
        assert find_files([tmp_path / ".e.txt"]) == [tmp_path / ".e.txt"]

    def test_a_name_with_brackets_is_a_name_first(self, tmp_path):
        assert find_files([write(tmp_path / "[a].txt", "x")]) == [tmp_path / "[a].txt"]

    @pytest.mark.parametrize(
        "name, message",
        [
            ("none.txt", r"none\.txt does not exist"),
            ("*.txt", r"no file matches the pattern .*\*\.txt"),
            ("**/x", "no file matches"),
            ("empty", "the folder .*empty has no files"),
        ],
    )
    def test_nothing_found(self, tmp_path, name, message):
        (tmp_path / "empty").mkdir()
        with pytest.raises(InvalidArgumentError, match=message):
            find_files([tmp_path / name])

    def test_unknown_suffixes_in_folders_are_skipped_and_named(self, tmp_path):
        known = ["a.txt", "b.jsonl", "c.csv.gz", "d.tsv", "d/e.parquet", "README", "g.gz"]
        unknown = ["h.html", "d/i.html", "j.bin", "k.tar.gz", "l.parquet.gz"]
        for name in (*known, *unknown, ".git", "out.txt", "out.html"):
            write(tmp_path / name, name)
        messages = []
        outputs = [tmp_path / "out.txt", tmp_path / "out.html"]
        found = find_files([tmp_path], outputs, messages.append)
        assert found == sorted(tmp_path / name for name in known)
        (message,) = messages
        assert "folders: .bin, .html, .parquet.gz, .tar.gz; " in message
        assert tmp_path / "h.html" in find_files([tmp_path / "h.html", tmp_path])
        assert tmp_path / "h.html" in find_files([f"{tmp_path}/*.html"])
        with pytest.raises(InvalidArgumentError, match=r"only files of unknown kinds .*\.html"):
            find_files([tmp_path / "d"], [tmp_path / "d/e.parquet"])

    @pytest.mark.parametrize("name", ["x.npz", "x.json", "x.NDJSON.gz"])
    def test_files_that_are_no_text_are_refused(self, tmp_path, name):
        (tmp_path / name).write_text("text")
        for path in (name, "*"):
            with pytest.raises(InvalidArgumentError, match="is not text; use "):
                find_files([tmp_path / path])

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_a_pipe_is_refused(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InvalidArgumentError, match="pipe is not a regular file"):
            find_files([tmp_path / "pipe"])


class TestDocuments:
    def test_text(self, tmp_path):
        content = f"\ufeffone\r\n{EOT}\r\n two\n\nlines \n{EOT}{EOT}\n\n{EOT}three"
        file = write(tmp_path / "a.txt", content)
        assert documents(file) == ["one", " two\n\nlines ", "three"]
        zipped = write(tmp_path / "a.txt.gz", content)
        assert documents(zipped) == documents(file)

    def test_other_separators(self, tmp_path):
        file = write(tmp_path / "a.md", f"1<a>2<a3{EOT}")
        assert documents(file, separators=("<a", "<a>")) == ["1", "2", f"3{EOT}"]
        assert documents(file, separators=()) == [f"1<a>2<a3{EOT}"]

    def test_json_lines(self, tmp_path):
        lines = [{"text": f" a\n{EOT}b\n", "body": "B"}, {"text": "", "body": "é\u2028"}]
        content = "\n\n".join(json.dumps(line) for line in lines) + "\n"
        file = write(tmp_path / "a.jsonl", content)
        zipped = write(tmp_path / "b.jsonl.gz", content)
        assert documents(file, zipped) == [" a\n", "b\n"] * 2
        assert documents(file, field="body") == ["B", "é\u2028"]

    @settings(deadline=None, max_examples=100)
    @given(
        parts=st.lists(st.sampled_from(["<s>", "<s", "s>", "a", " ", "\n", "é", "bc d"])),
        read=st.integers(1, 9),
    )
    def test_read_in_pieces_as_at_once(self, tmp_path_factory, parts, read):
        text = "".join(parts)
        file = write(tmp_path_factory.mktemp("corpus") / "a.txt", text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(corpus, "_READ_SIZE", read)
            found = documents(file, separators=("<s>",))
        assert found == [part for p in text.split("<s>") if (part := p.strip("\n"))]


class TestDamage:
    @pytest.mark.parametrize(
        "name, content, message",
        [
            ("a.txt", b"0123456\xffabc", r"a\.txt, document 1 is not UTF-8 .* 0xff at offset 7"),
            ("a.txt", b"0123\xe4\xb8", r"a\.txt, document 1 is not UTF-8 .* 0xe4 at offset 4"),
            ("a.txt.gz", b"no gzip", r"cannot read .*a\.txt\.gz: Not a gzipped file"),
            ("a.jsonl", b'{"text": "x"}\n\n{"text"}', r"a\.jsonl, line 3: not JSON"),
            ("a.jsonl", b'{"text": "x"}\n\xff', r"a\.jsonl, line 2 is not UTF-8 text: byte 0xff"),
            (
                "a.jsonl",
                b'{"body": "x"}',
                r"line 1: expected .* field 'text'; set `field` to one of its fields, \['body'\]$",
            ),
            ("a.jsonl", b'{"text": 3}', "line 1: expected a string in"),
            ("a.jsonl", '{"text": "x"}'.encode("utf-16"), "line 1 is UTF-16 text, not UTF-8$"),
            ("a.txt", "text".encode("utf-16"), r"a\.txt is UTF-16 text, not UTF-8; convert"),
            ("a.jsonl", b'["text"]', r"line 1: expected a JSON object, got \['text'\]"),
            ("a.jsonl", b'{"text": "\\ud800"}', "line 1: the field .* lone surrogate"),
        ],
    )
    def test_is_named(self, tmp_path, monkeypatch, name, content, message):
        monkeypatch.setattr(corpus, "_READ_SIZE", 5)
        files = [write(tmp_path / name, content), write(tmp_path / "z.txt", "next document")]
        with pytest.raises(UnreadableFileError, match=message):
            list(read_corpus_texts(files))


def test_long_lines_and_documents_are_refused(tmp_path, monkeypatch):
    small = Limits(max_line_bytes=1000, max_document_bytes=3_000_000)
    monkeypatch.setattr("gpt2np.data.corpus.limits", lambda: small)
    monkeypatch.setattr("gpt2np.data.files.limits", lambda: small)
    line = "line 2: more than 1,000 bytes; to raise this limit, set GPT2NP_MAX_LINE_BYTES"
    for name, content, told in (
        ("x.jsonl", '"a"\n"' + "a" * 2000 + '"\n', line),
        ("x.jsonl.gz", '"a"\n"' + "a" * 2000 + '"\n', line),
        ("x.txt", "a" * 4_000_000, "more than 3,000,000 characters"),
    ):
        with pytest.raises(UnreadableFileError, match=told):
            documents(write(tmp_path / name, content))


class TestCSV:
    @pytest.mark.parametrize("end", ["", ".gz"])
    def test_rows_as_pandas_splits_them(self, tmp_path, end):
        content = '\ufeffid,text\r\n1,"One, ""two""\r\nlines é"\r\n\r\n2\r\n3,NA\r\n'
        path = write(tmp_path / f"a.csv{end}", content)
        texts = ['One, "two"\r\nlines é', "", "NA"]
        assert documents(path) == texts[::2] and documents(path, field="id") == ["1", "2", "3"]
        assert [document[:2] for document in read_documents(path)] == [
            *zip(texts, (1, 2, 3), strict=True)
        ]
        tabs = write(tmp_path / f"a.tsv{end}", 'id\ttext\n1\tOne, "two"\n2\t"a\tb"\n')
        assert documents(tabs) == ['One, "two"', "a\tb"]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", r"a\.csv is empty$"),
            (b"a,b\n1,2\n", r"has no column 'text'; set `field` to .*columns, \['a', 'b'\]$"),
            (b"text\none\ntwo,three\n", r"a\.csv, line 3: 2 values for 1 columns"),
            (b'text\n"one\n', r"a\.csv, line 2: unexpected end of data"),
            (b"text\none\ntw\xff\n", r"not UTF-8 text: byte 0xff at offset 2 of line 3"),
            ("text\n".encode("utf-16"), r"a\.csv is UTF-16 text, not UTF-8$"),
        ],
    )
    def test_damaged_files(self, tmp_path, content, message):
        with pytest.raises(UnreadableFileError, match=message):
            documents(write(tmp_path / "a.csv", content))


@pytest.mark.parametrize("name", ["a.txt", "a.db", "a.tar.gz"])
def test_a_binary_file_is_refused(tmp_path, name):
    content = b"SQLite format 3\0" + bytes(100)
    path = write(tmp_path / name, content)
    with pytest.raises(UnreadableFileError, match=f"{name} is a binary file, not text; leave it"):
        list(read_corpus_texts([path]))
    (document,) = read_documents(path)
    assert "is a binary file" in document.problem


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_two_columns_of_one_name_are_refused(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    if suffix == "csv":
        write(path, "text,text\na,b\n")
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = [arrow.array(["a"]), arrow.array(["b"])]
        parquet.write_table(arrow.table(columns, names=["text", "text"]), path)
    with pytest.raises(UnreadableFileError, match="has 2 columns of the name 'text'; rename"):
        documents(path)


def test_the_progress_of_a_compressed_file_ends_with_its_last_batch(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'"aaaaaaaa"\n' * 100))
    texts = [(document.text, 1, 8) for document in read_documents(path)]
    batches = read_batches([path], lambda file: texts, 20)
    job = corpus_job([path], {}, lambda start: ((b, Results((b"",))) for b in batches), list)
    progress = [step.position.done for step in job.steps(START)]
    assert progress == [160, 320, 480, 640, 800, 1100]
