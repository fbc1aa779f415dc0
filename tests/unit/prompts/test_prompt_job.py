"""The job behind `generate --prompts`: what makes it begin anew, and what it keeps in memory."""

import json
import shutil

import pytest

from gpt2np import GenerationOptions, load
from gpt2np.prompts import job
from gpt2np.prompts.job import JobCallbacks, PromptJob


class Interrupted(Exception):
    pass


@pytest.fixture
def lm():
    return load("bundled")


def run(lm, folder, content, interrupt_after=None, **options):
    """Runs a job, perhaps not to its end; the lines it resumed after, and what it wrote."""
    (folder / "p.jsonl").exists() or (folder / "p.jsonl").write_text(content)
    resumed, restarted, described = [], [], []

    def describe(completion):
        if len(described) == interrupt_after:
            raise Interrupted
        described.append(completion)
        return {"ids": completion.ids, "seed": completion.seed}

    callbacks = JobCallbacks(resumed.append, lambda: restarted.append(True))
    given = {"seed": 1, "max_new_tokens": 3, **options}
    work = PromptJob(lm, folder / "p.jsonl", folder / "o.jsonl", describe, given, callbacks)
    work.run()
    lines = (folder / "o.jsonl").read_text().splitlines()
    return resumed, restarted, [json.loads(line)["ids"] for line in lines]


PROMPTS = "".join(json.dumps(f"The king {number}") + "\n" for number in range(20))


def test_other_defaults_or_ends_begin_anew(lm, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_SAVE_INTERVAL_S", 0)
    ends = lm.eos_token_ids
    for number, name in enumerate(["same", "defaults", "ends"]):
        folder = tmp_path / name
        folder.mkdir()
        lm.defaults, lm.eos_token_ids = GenerationOptions(), ends
        with pytest.raises(Interrupted):
            run(lm, folder, PROMPTS, interrupt_after=18)
        if name == "defaults":
            lm.defaults = GenerationOptions(temperature=0)
        if name == "ends":
            lm.eos_token_ids = frozenset({5})
        resumed, restarted, found = run(lm, folder, PROMPTS)
        assert bool(resumed) == (number == 0) and bool(restarted) == (number > 0)
        shutil.copy(folder / "p.jsonl", tmp_path)
        assert found == run(lm, tmp_path, PROMPTS)[2]


def test_what_is_ready_early_does_not_fill_the_memory(lm, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_MAX_FINISHED", 4)
    long = json.dumps({"prompt": "The king", "max_new_tokens": 200, "ignore_eos": True}) + "\n"
    most, put = [], PromptJob._finish_line

    def counted(self, *arguments):
        put(self, *arguments)
        most.append(len(self._finished))

    monkeypatch.setattr(PromptJob, "_finish_line", counted)
    _, _, found = run(lm, tmp_path, long + PROMPTS * 3)
    assert len(found) == 61 and len(found[0]) == 200
    assert 4 <= max(most) < 25  # those that were running go on
