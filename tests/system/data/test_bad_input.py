"""`score`, `encode` and `batch` with broken input, and on a disk that is full."""

import pytest
from helpers.command_line import run_here

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
