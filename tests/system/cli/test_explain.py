"""`gpt2np explain` as a user runs it."""

from helpers.command_line import run_here

PROMPT = "Once upon a time there was a little fox"


def explain(*arguments, stdin=b"", model="bundled", cwd=None):
    command = ("explain", *arguments, "--model", model)
    return run_here(*command, stdin=stdin, folder=cwd, encoding=None)


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
