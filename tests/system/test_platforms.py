"""Commands on a standard library that lacks what Windows or macOS lacks; ASCII as the locale."""

import json
import multiprocessing
import os
import subprocess
import sys
from functools import partial

import pytest
from helpers.paths import CHECKOUT

from gpt2np.data.workers import map_in_order

PROMPTS = ["Once upon a time", "Der Bär – 🐻", "The fox"]


def run(platform, *arguments, returncode=0):
    """Run a command as on `platform`, and check its exit code; return stdout and stderr."""
    program = ["-X", "warn_default_encoding", CHECKOUT / "tests" / "helpers" / "other_platform.py"]
    command = [sys.executable, *program, platform, *arguments, "--model", "bundled"]
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    result = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **locale},
        capture_output=True,
        timeout=120,
    )
    assert result.returncode == returncode, result.stderr.decode()
    return result.stdout.decode(), result.stderr.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="imitates other platforms on Linux")
@pytest.mark.parametrize("platform", ["win32", "darwin"])
class TestOtherPlatforms:
    def test_a_text(self, platform, lm):
        output, _ = run(
            platform, "generate", PROMPTS[1], "--seed", "1", "-n", "30", "--processes", "2"
        )
        expected = lm.generate(PROMPTS[1], seed=1, max_new_tokens=30, draft="none")
        assert output == f"{PROMPTS[1]}{expected.text}\n"

    def test_many_prompts(self, platform, lm, tmp_path):
        file, out = tmp_path / "p.txt", tmp_path / "Bär.jsonl"
        file.write_text("\n".join(PROMPTS), encoding="utf-8")
        run(platform, "batch", file, "--out", out, "--seed", "1", "-n", "20")
        lines = [json.loads(line) for line in out.read_bytes().splitlines()]
        assert [line["prompt"] for line in lines] == PROMPTS
        assert lines[0]["text"] == lm.generate(PROMPTS[0], seed=1, max_new_tokens=20).text
        assert sorted(path.name for path in tmp_path.iterdir()) == ["Bär.jsonl", "p.txt"]

    def test_a_lock_is_held_once(self, platform, tmp_path):
        program = """if True:
            import sys
            from pathlib import Path
            from helpers.other_platform import imitate
            imitate(sys.argv[1])
            from gpt2np import GPT2NPError
            from gpt2np.data.resumable import work_folder
            with work_folder(Path(sys.argv[2])):
                try:
                    with work_folder(Path(sys.argv[2])):
                        print("held twice")
                except GPT2NPError as error:
                    print(error)
        """
        path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests")])
        env = {**os.environ, "PYTHONPATH": path}
        command = [sys.executable, "-c", program, platform, tmp_path / "x"]
        result = subprocess.run(command, capture_output=True, check=True, env=env)
        assert result.stdout.startswith(b"another process is writing to")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_workers_start_with_every_method(method, lm, monkeypatch):
    """Linux forks until Python 3.13 and has a fork server from 3.14 on; Windows and macOS spawn."""
    texts = [f"The fox {number} – 🦊" for number in range(50)]
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(method, force=True)
    try:
        encoded = [
            ids for _, ids in map_in_order(partial(getattr, lm.tokenizer, "encode"), texts, 2)
        ]
        assert encoded == lm.tokenizer.encode_batch(texts)
    finally:
        multiprocessing.set_start_method(before, force=True)
