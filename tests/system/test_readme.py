"""The README is true: CI runs its commands, its outputs are real, its links exist."""

import re
import shlex
import subprocess
import sys

import pytest
from helpers.paths import CHECKOUT

import gpt2np

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    """Return the code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def block_with(text):
    """Return the only Python block that contains `text`."""
    (block,) = (block for block in blocks("python") if text in block)
    return block


def test_ci_runs_the_readmes_test_command():
    if not (CHECKOUT / ".ci" / "run").exists():
        pytest.skip("no .ci/run here")
    command = next(block.strip() for block in blocks("sh") if "pytest" in block)
    assert command in (CHECKOUT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_opening_examples_output_is_real():
    command, _, shown = blocks("console")[0].partition("\n")
    arguments = ["-m", *shlex.split(command.removeprefix("$ "))]
    result = subprocess.run([sys.executable, *arguments], capture_output=True, cwd=CHECKOUT)
    assert result.stdout.decode().split() == shown.split()  # the README folds long lines


def test_the_library_example_runs(capsys):
    exec(blocks("python")[0], {})
    text, ids, shape = capsys.readouterr().out.rsplit("\n", 3)[:3]
    assert len(text) > 50 and ids.startswith("[") and shape == "(3, 4096)"


def test_the_decoding_example_runs(capsys):
    names = {}
    exec(blocks("python")[0], names)
    capsys.readouterr()
    exec(block_with("best_of=8"), names)
    out = capsys.readouterr().out
    assert "TokenLogprob(id=" in out and ("\nstop " in out or "\nlength " in out)


def test_a_changed_model_is_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(blocks("python")[0], names)
    exec(block_with("GenerationInterrupted"), names)
    assert len(names["texts"]) == 2
    exec(block_with("model.save("), names)
    again = names["gpt2np"].load("my-model")
    assert again.generate("The", seed=1).ids == names["lm"].generate("The", seed=1).ids


def test_the_scoring_examples_output_is_real(capsys):
    exec(block_with(").words():"), {"lm": gpt2np.load("bundled")})
    assert capsys.readouterr().out == blocks("text")[0]


def test_the_tokenizers_example_runs(capsys):
    exec(block_with("from gpt2np import Tokenizer"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("('l', 'ittle')") and len(lines) == 12


PAGES = ["README.md", "benchmarks/NOTES.md", "docs/architecture.md", "docs/glossary.md"]


@pytest.mark.parametrize("page", PAGES)
def test_every_linked_file_exists(page):
    path = CHECKOUT / page
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_the_architecture_names_every_package_and_every_module_of_the_core():
    text = (CHECKOUT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = CHECKOUT / "gpt2np"
    for folder in package.iterdir():
        if (folder / "__init__.py").exists():
            assert f"  {folder.name}/" in text, folder.name
    for name in ("model", "runtime", "kernels", "checkpoint"):
        section = text.partition(f"### {name}/")[2].partition("\n#")[0]
        modules = {path.name for path in (package / name).glob("*.py")} - {"__init__.py"}
        assert set(re.findall(r"^\| `(\w+\.py)` \|", section, re.MULTILINE)) == modules


def test_the_glossary_is_sorted():
    text = (CHECKOUT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| `?([^|`]+?)`? \|", text, re.MULTILINE)[1:]
    assert len(terms) > 100 and terms == sorted(terms, key=str.lower)
