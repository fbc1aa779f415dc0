"""The wheel: its contents, and the main job in an empty environment, offline."""

import os
import shutil
import subprocess
import venv
import zipfile
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from hatchling.build import build_wheel
from helpers.paths import CHECKOUT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(CHECKOUT)
        return folder / build_wheel(str(folder))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of a virtual environment with only the wheel and what it requires, as links."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    wanted, installed = requirements(wheel), set()
    while wanted:
        if (name := wanted.pop()) not in installed:
            installed.add(name)
            found = distribution(name)
            for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                (site / top).symlink_to(found.locate_file(top))  # with the compiled modules
            wanted |= without_extras(found.requires or ())
    return folder / "bin" / "python"


def without_extras(lines):
    """Return the names of requirements that hold here without an extra."""
    needed = map(Requirement, lines)
    return {
        canonicalize_name(n.name)
        for n in needed
        if n.marker is None or n.marker.evaluate({"extra": ""})
    }


def requirements(wheel):
    content = zipfile.ZipFile(wheel)
    name = next(name for name in content.namelist() if name.endswith("METADATA"))
    return without_extras(Parser().parsestr(content.read(name).decode()).get_all("Requires-Dist"))


def offline(python, *arguments, stdin=None, folder: Path):
    """Run gpt2np without a network: in a new network namespace, if the system has them."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("HF_", "PYTHON", "GPT2NP"))
    }
    environment |= {"HF_HOME": str(folder / "home"), "HTTPS_PROXY": "http://127.0.0.1:9"}
    isolated = ["unshare", "--net", "--map-root-user"]
    if not (shutil.which("unshare") and subprocess.run([*isolated, "true"]).returncode == 0):
        isolated = []
    command = [*isolated, str(python), "-m", "gpt2np", *arguments]
    options = {"input": stdin, "cwd": folder, "env": environment, "timeout": 120}
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_contents(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for needed in (
        "gpt2np/py.typed",
        "gpt2np/view/page.html",
        "gpt2np/view/colors.css",
        "gpt2np/view/index.html",
        "gpt2np/view/zoom.js",
        "gpt2np/weights/config.json",
        "gpt2np/weights/generation_config.json",
        "gpt2np/weights/model.safetensors",
        "gpt2np/weights/vocab.json",
        "gpt2np/weights/merges.txt",
        "gpt2np/weights/ngram_draft.safetensors",
        "gpt2np/generation/gpt2_ngram_draft/ngram_draft.safetensors",
        "gpt2np/generation/gpt2_ngram_draft/README.md",
        "gpt2np/weights/README.md",
    ):
        assert needed in names
    assert not [
        name for name in names if name.startswith(("tests", "examples", "benchmarks", "docs"))
    ]
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert wheel.stat().st_size < 20_000_000


def test_runtime_requirements(wheel):
    assert requirements(wheel) == {"numpy", "safetensors", "regex", "huggingface-hub", "filelock"}


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_the_main_job_offline(installed, tmp_path):
    result = offline(installed, "generate", "Once upon a time", "--seed", "1", folder=tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith("Once upon a time") and len(result.stdout) > 300
    assert result.stderr.startswith("warning: the model is bundled: openai-community/gpt2 is ")
    options = ("-", "--seed", "1", "--model", "bundled", "-n", "20")
    piped = offline(installed, "generate", *options, stdin="Once upon a time\n", folder=tmp_path)
    assert len(piped.stdout) > 30 and result.stdout.startswith(piped.stdout.rstrip("\n"))


@pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")
def test_it_needs_nothing_else(installed, tmp_path):
    program = (
        "import gpt2np\n"
        "from importlib.metadata import distributions\n"
        "print(*(distribution.metadata['Name'] for distribution in distributions()))"
    )
    listed = subprocess.run(
        [installed, "-I", "-c", program], check=True, cwd=tmp_path, capture_output=True, text=True
    ).stdout.split()
    assert "numpy" in listed and "torch" not in listed and "transformers" not in listed
