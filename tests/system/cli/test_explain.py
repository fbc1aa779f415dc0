"""`gpt2np explain` as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import run_here

PROMPT = "Once upon a time there was a little fox"


def explain(*arguments, stdin=b"", model="bundled", cwd=None):
    command = ("explain", *arguments, "--model", model)
    return run_here(*command, stdin=stdin, folder=cwd, encoding=None)


def error(result, code=2):
    assert result.returncode == code and result.stdout == b""
    line = result.stderr.decode().splitlines()[-1]
    assert line.startswith("gpt2np explain: error: ")
    return line.removeprefix("gpt2np explain: error: ")


def test_one_file_and_its_name(tmp_path):
    page = tmp_path / "page.html"
    result = explain(PROMPT, "-o", page)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode().splitlines() == [str(page)]
    assert list(tmp_path.iterdir()) == [page]
    size = page.stat().st_size
    lines = result.stderr.decode().splitlines()
    assert lines == ["model: bundled", f"9 tokens, {size:,} bytes"]
    html = page.read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>") and html.endswith("</html>\n")
    assert "What happens to" in html and PROMPT in html and size < 700_000


def test_hostile_text_from_standard_input(tmp_path):
    page = tmp_path / "page.html"
    text = "</script><script>alert(1)</script>\x00\u202e & <b> $x"
    arguments = ("-", "-o", page)
    result = explain(*arguments, stdin=text.encode())
    assert result.returncode == 0, result.stderr.decode()
    html = page.read_text(encoding="utf-8")
    assert "<script>alert" not in html
    assert html.count("</script>") == 2 and "\x00" not in html


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fox", "-o", "."], ".: the suffix selects the format"),
        (["fox", "-o", "no/page.html"], "the folder no does not exist"),
        (["fox " * 99, "-o", "p.html"], "and a page holds at most 64"),
        (["fox", "-o", "p.html", "--file", "x"], "give either PROMPT or --file, not both"),
        (["fox"], "the following arguments are required: -o/--output"),
        (["fox", "-o", "p.png"], "p.png: the suffix selects the format; use one of .html, .htm"),
        (["-o", "p.html", "--file", "none.txt"], "cannot read --file none.txt: No such file"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, arguments, message):
    assert message in error(explain(*arguments, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no devices here")
def test_a_device_is_never_replaced(tmp_path):
    (tmp_path / "full.html").symlink_to("/dev/full")
    told = error(explain("fox", "-o", tmp_path / "full.html"))
    assert "full.html is not a file" in told
    assert not Path("/dev/full").is_file()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here")
def test_where_nothing_can_be_written():
    """In /proc not even root can make a file."""
    result = explain("fox", "-o", "/proc/page.html")
    assert error(result, code=1).startswith("cannot write /proc/page.html: ")


def test_a_page_that_is_there_is_replaced_only_by_force(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("old", encoding="utf-8")
    told = error(explain("fox", "-o", page))
    assert told.startswith(f"{page} exists already; give --force (in Python,")
    assert page.read_text(encoding="utf-8") == "old"
    result = explain("fox", "-o", page, "--force")
    assert result.returncode == 0 and page.read_text(encoding="utf-8").startswith("<!DOCTYPE")


def test_a_page_on_standard_output(tmp_path):
    result = explain("fox", "-o", "-", cwd=tmp_path)
    html = result.stdout.decode()
    assert result.returncode == 0 and html.startswith("<!DOCTYPE html>")
    assert html.endswith("</html>\n") and list(tmp_path.iterdir()) == []
    assert b"--force has no effect" in explain("fox", "-o", "-", "--force", cwd=tmp_path).stderr


def test_help_says_what_is_replaced_and_which_model_is_taken():
    words = " ".join(explain("--help").stdout.decode().split())
    assert "-o FILE, --output FILE HTML file to write, or '-' to write to standard output" in words
    assert "--force Overwrite FILE if it exists" in words
    assert "default: $GPT2NP_MODEL if set, else" in words and "--dtype" not in words


def test_a_full_disk_leaves_the_old_page(tmp_path):
    """A limit on the size of files stands for a full disk."""
    resource = pytest.importorskip("resource", reason="no limits here")
    page = tmp_path / "page.html"
    page.write_text("old", encoding="utf-8")
    result = subprocess.run(
        [
            sys.executable,
            "-B",  # a .pyc would be cut off, too
            "-m",
            "gpt2np",
            "explain",
            "fox",
            "-o",
            str(page),
            "--force",
            "--model",
            "bundled",
        ],
        capture_output=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),
    )
    told = result.stderr.decode().splitlines()[-1]
    assert told == f"gpt2np explain: error: cannot write {page}: File too large"
    assert (result.returncode, result.stdout) == (1, b"")
    assert page.read_text(encoding="utf-8") == "old" and list(tmp_path.iterdir()) == [page]
