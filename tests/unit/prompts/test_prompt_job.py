"""The job behind `batch`: what it refuses to lose, and what it keeps in memory."""

import json

import pytest
from helpers.parts import saves
from helpers.random_models import save_byte_model

from gpt2np import GenerationOptions, InvalidArgumentError, load
from gpt2np import prompts as job
from gpt2np.data import resumable
from gpt2np.data.resumable import JobCallbacks
from gpt2np.generation import complete
from gpt2np.prompts import continue_file


class Interrupted(Exception):
    pass


def run(
    lm, folder, content, interrupt_after=None, force=False, on_progress=lambda *_: None, **options
):
    """Runs a job, perhaps not to its end; the lines it resumed after, and what it wrote."""
    (folder / "p.jsonl").write_text(content)
    resumed, restarted, described = [], [], []

    def describe(completion, tokenizer):
        if len(described) == interrupt_after:
            raise Interrupted
        described.append(completion)
        return {"ids": completion.ids, "seed": completion.seed}

    callbacks = JobCallbacks(resumed.append, restarted.append, on_progress)
    given = {"seed": 1, "max_new_tokens": 3, **options}
    paths = folder / "p.jsonl", folder / "o.jsonl"
    paths[1].unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "completion_as_json", describe)
        continue_file(lm, *paths, given, callbacks, force=force)
    lines = (folder / "o.jsonl").read_text().splitlines()
    return resumed, restarted, [json.loads(line)["ids"] for line in lines]


PROMPTS = "".join(json.dumps(f"The king {number}") + "\n" for number in range(24))


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    """A tiny model: these tests are about what is kept, not about texts."""
    folder = tmp_path_factory.mktemp("model")
    save_byte_model(folder, n_positions=128)
    return load(folder)


@pytest.fixture
def interrupted(lm, tmp_path, monkeypatch):
    """A folder with a job that was interrupted after 20 of 24 prompts; 16 run at a time."""
    monkeypatch.setattr(resumable, "SAVE_SECONDS", 0)
    with pytest.raises(Interrupted):
        run(lm, tmp_path, PROMPTS, interrupt_after=20)
    return tmp_path


def kept(folder):
    return saves(folder / "o.jsonl.partial")[-1][0][2]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"max_new_tokens": 4}, "`max_new_tokens` was 3, is 4; undo the change to go on, or start"),
        pytest.param({"seed": 2}, "`seed` was 1, is 2; undo", marks=pytest.mark.slow),
        (
            {"top_k": 9, "stop": ["a"]},
            r"`top_k` was not given, is 9; `stop` was not given, is \['a'\];",
        ),
        ("defaults", r"default of temperature was 0\.8, is 0\.0; undo"),
        ("ends", r"`eos_token_ids` was \[262\], is \[5\]; undo"),
        ("model", "`model` was '.*', is 'other'; undo"),
        ("int8", "`weights` was not given, is 'int8'; undo"),
    ],
)
def test_a_changed_option_is_named_and_nothing_is_lost(lm, interrupted, change, told, monkeypatch):
    given = change if isinstance(change, dict) else {}
    if change == "defaults":
        monkeypatch.setattr(lm, "defaults", GenerationOptions(temperature=0.0))
    if change == "ends":
        monkeypatch.setattr(lm, "eos_token_ids", frozenset({5}))
    if change == "model":
        monkeypatch.setattr(lm, "name", "other")
    if change == "int8":
        lm = load(lm.name, weights="int8")
    done = kept(interrupted)
    assert done > 0
    with pytest.raises(InvalidArgumentError, match=told):
        run(lm, interrupted, PROMPTS, **given)
    assert kept(interrupted) == done
    resumed, restarted, found = run(lm, interrupted, PROMPTS, force=True, **given)
    assert resumed == [] and len(restarted) == 1
    assert found == run(lm, interrupted, PROMPTS, **given)[2]


def test_appended_prompts_go_on(lm, interrupted):
    longer = PROMPTS.removesuffix("\n") + '\r\n"And now"\n"and then"'
    resumed, restarted, found = run(lm, interrupted, longer)
    assert resumed == [20] and restarted == []
    assert len(found) == 26 and found == run(lm, interrupted, longer)[2]


@pytest.mark.parametrize(
    "content", [PROMPTS.replace("king 12", "fox 12"), PROMPTS[: len(PROMPTS) // 2]]
)
def test_a_changed_prompt_is_named_(lm, interrupted, content):
    with pytest.raises(InvalidArgumentError, match=r"line 13 of .* has changed; undo"):
        run(lm, interrupted, content)
    resumed, restarted, found = run(lm, interrupted, content, force=True)
    assert resumed == [] and len(restarted) == 1
    assert found == run(lm, interrupted, content)[2]


def test_what_is_ready_early_does_not_fill_the_memory(lm, tmp_path, monkeypatch):
    monkeypatch.setattr(complete, "_MAX_STARTED", 20)
    long = json.dumps({"prompt": "The king", "max_new_tokens": 60, "ignore_eos": True}) + "\n"
    read, put, most = [], job.read_prompts, 0

    def counted(*arguments):
        for line in put(*arguments):
            read.append(line)
            yield line

    def on_progress(done, n_tokens):
        nonlocal most
        most = max(most, len(read) - done)

    monkeypatch.setattr(job, "read_prompts", counted)
    content = long + PROMPTS * 2
    _, _, found = run(lm, tmp_path, content, on_progress=on_progress)
    assert len(found) == 49 and len(found[0]) == 60
    assert 16 <= most <= 20


def test_options_of_a_line_replace_the_options_of_the_job(lm, tmp_path):
    given = {"prompt": "The king", "temperature": 0, "stop": ["a"]}
    options = {"temperature": 0.9, "stop": ["z"], "max_new_tokens": 9}
    found = run(lm, tmp_path, json.dumps(given) + "\n", **options)[2]
    expected = lm.generate("The king", temperature=0, stop=["a"], max_new_tokens=9)
    assert found == [expected.ids]


def test_a_programming_error_is_not_a_skipped_line(lm, tmp_path, monkeypatch):
    def start(model, request):
        raise TypeError("a bug")

    monkeypatch.setattr("gpt2np.prompts.start", start)
    with pytest.raises(TypeError, match="a bug"):
        run(lm, tmp_path, PROMPTS)


def test_a_column_with_the_name_of_an_option_is_a_warning(lm, tmp_path):
    (tmp_path / "p.csv").write_text("prompt,temperature,note\nThe fox,0,1\n")
    with pytest.warns(UserWarning, match=r"p\.csv: the values of temperature are copied"):
        continue_file(lm, tmp_path / "p.csv", tmp_path / "o.csv", {"seed": 1, "max_new_tokens": 3})
    assert "temperature" in (tmp_path / "o.csv").read_text().splitlines()[0]
