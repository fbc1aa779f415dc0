"""`score`, `encode` and `batch` with broken input, and on a disk that is full."""

import json
import os
import subprocess
import sys

import pytest
from helpers.command_line import run_here
from helpers.kills import run_to_the_end

from gpt2np.data.parquet import write_rows

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install gpt2np[parquet]")
TEXTS = [f"The king {i} was old." for i in range(3000)]
FIELDS = {"score": "text", "encode": "text", "batch": "prompt"}


def arguments(command, source, out):
    given = {
        "score": ["score", source, "--out", out],
        "encode": ["encode", source, out],
        "batch": ["batch", source, "--out", out, "-n", "1", "--seed", "1"],
    }[command]
    return [*map(str, given), "--model", "bundled"]


def write_inputs(folder, field):
    """Write an intact file and broken files; return the expected message for each broken one."""
    rows = [{field: text} for text in TEXTS]
    write_rows(rows, folder / "good.parquet", {field: str})
    write_rows([{"body": "x"}], folder / "column.parquet", {"body": str})
    content = (folder / "good.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(content[: len(content) // 2])
    (folder / "field.jsonl").write_text('{"body": "x"}\n')
    (folder / "bytes.jsonl").write_bytes(f'{{"{field}": "a '.encode() + b'\xff"}\n')
    return {
        "column.parquet": "has no column",
        "cut.parquet": "cut.parquet as Parquet: ",
        "field.jsonl": 'an object with a "prompt"' if field == "prompt" else "expected a string",
        "bytes.jsonl": "byte 0xff",
    }


@pytest.mark.parametrize(
    ("command", "suffix"), [("score", ".jsonl"), ("batch", ".parquet"), ("encode", ".bin")]
)
def test_broken_files(command, suffix, tmp_path):
    """Each is told in one line that names the file; nothing is written, nor left behind."""
    for name, told in write_inputs(tmp_path, FIELDS[command]).items():
        result = run_here(*arguments(command, tmp_path / name, tmp_path / f"o{suffix}"))
        *_, last = lines = result.stderr.splitlines()
        assert result.returncode in (1, 2) and last.startswith(f"gpt2np {command}: error: ")
        assert [line for line in lines if told in line and name in line], (name, lines)
        assert len(lines) < 5 and "Traceback" not in result.stderr
        assert not list(tmp_path.glob("o*")), name


@pytest.mark.parametrize("command", FIELDS)
def test_an_output_that_exists(command, tmp_path):
    write_rows([{FIELDS[command]: "x"}], tmp_path / "in.parquet", {FIELDS[command]: str})
    out = tmp_path / ("o.npz" if command == "encode" else "o.parquet")
    out.write_text("kept")
    result = run_here(*arguments(command, tmp_path / "in.parquet", out))
    assert result.returncode == 2 and result.stderr.count("\n") <= 2
    assert f"{out.name} exists already; give --force" in result.stderr
    assert out.read_text() == "kept"
    assert not list(tmp_path.glob("*.partial"))


@pytest.fixture
def full_disk(tmp_path):
    """Return a folder on a disk of 100 KB, and a function that makes the disk larger."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield folder, ["mount", "-o", "remount,size=100m", str(folder)]
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "out"),
    [
        *(("score", f"o{suffix}") for suffix in (".jsonl", ".parquet")),
        *(("encode", f"o{suffix}") for suffix in (".bin", ".npz")),
        *(("batch", f"o{suffix}") for suffix in (".jsonl", ".parquet")),
    ],
)
def test_a_full_disk(command, out, full_disk, tmp_path):
    """One line, no output; with more room, the command resumes to the same bytes."""
    folder, enlarge = full_disk
    texts = TEXTS * 40 if command == "encode" else TEXTS
    write_rows(
        [{FIELDS[command]: text} for text in texts], tmp_path / "in.parquet", {FIELDS[command]: str}
    )
    whole = run_here(*arguments(command, tmp_path / "in.parquet", tmp_path / out))
    assert whole.returncode == 0
    given = arguments(command, tmp_path / "in.parquet", folder / out)
    result = run_here(*given)
    *_, last = lines = result.stderr.splitlines()
    assert result.returncode == 1 and len(lines) < 5 and "Traceback" not in result.stderr
    assert last == f"gpt2np {command}: error: cannot write {folder / out}: No space left on device"
    assert not (folder / out).exists()
    subprocess.run(enlarge, check=True)
    run_to_the_end([sys.executable, "-m", "gpt2np", *given], folder / out, tmp_path / out)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("command", ["encode", "batch"])
def test_a_document_of_50_megabytes(command, suffix, tmp_path):
    """`encode` encodes it; `generate` tells that the prompt is too long, and goes on."""
    rows = [{FIELDS[command]: text} for text in ("A fox.", "- a" * 17_000_000, "A king.")]
    source, out = tmp_path / f"in{suffix}", tmp_path / ("o.bin" if command == "encode" else "o.csv")
    if suffix == ".parquet":
        write_rows(rows, source, {FIELDS[command]: str})
    else:
        source.write_text("\n".join(map(json.dumps, rows)))
    result = run_here(*arguments(command, source, out))
    lines = result.stderr.splitlines()
    assert "Traceback" not in result.stderr and max(map(len, lines)) < 500
    if command == "encode":
        assert result.returncode == 0 and lines[-1].startswith("3 documents, ")
    else:
        assert result.returncode == 1 and lines[-1].endswith("1 line skipped")
        assert [line for line in lines if f"{source} line 2: " in line and "context" in line]
