"""The plugin for `llm`, through llm's own command line and its Python interface."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
from helpers.chat_models import chat_model
from helpers.paths import CHECKOUT

from gpt2np.chat import ChatSession

tomllib = pytest.importorskip("tomllib")  # Python 3.11
pytestmark = pytest.mark.skipif(find_spec("llm") is None, reason="needs llm")  # slow to import

LLM_WITHOUT_NUMPY = """
import sys
sys.modules.update(numpy=None, pandas=None)  # which sqlite_utils imports if they are there
from llm import plugins
plugins.DEFAULT_PLUGINS = ()  # one imports openai, which takes a second
from llm.cli import cli
cli(standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""
SHORT = ("-o", "seed", "7", "-o", "max_new_tokens", "12")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder for sys.path in which gpt2np is an installed plugin."""
    folder = tmp_path_factory.mktemp("site")
    installed = folder / "llm_gpt2np-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-gpt2np\nVersion: 0\n")
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    [(name, module)] = project["entry-points"]["llm"].items()
    (installed / "entry_points.txt").write_text(f"[llm]\n{name} = {module}\n")
    return folder


@pytest.fixture(scope="module")
def command_line(site):
    """llm's command line with the plugin, without what takes seconds to import: pandas, openai."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pandas", None)
        patch.syspath_prepend(site)
        patch.setattr("llm.plugins.LLM_LOAD_PLUGINS", "llm-gpt2np")
        patch.setattr("llm.plugins.DEFAULT_PLUGINS", ())
        from llm.cli import cli
    return cli


@pytest.fixture(scope="module")
def new_user(tmp_path_factory):
    """A folder with llm's empty database, to copy: llm makes it in dozens of writes to the disk."""
    from llm.migrations import migrate
    from sqlite_utils import Database

    folder = tmp_path_factory.mktemp("user")
    migrate(Database(folder / "logs.db"))
    return folder


@pytest.fixture
def run_llm(command_line, new_user, tmp_path, monkeypatch):
    """run_llm(*arguments): run llm's command line in this process."""
    from click.testing import CliRunner

    shutil.copytree(new_user, tmp_path / "user")
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "user"))

    def run(*arguments, stdin="", code=0):
        result = CliRunner().invoke(command_line, [*map(str, arguments)], input=stdin)
        assert result.exit_code == code, result.stderr
        return result

    return run


@pytest.fixture
def chat_folder(tmp_path, bundled):
    return chat_model(tmp_path / "chat", bundled)


def test_continues_the_prompt(run_llm, lm):
    expected = lm.generate("Once upon a time", seed=7, max_new_tokens=12, temperature=0.5)
    options = (*SHORT, "-o", "temperature", "0.5", "-u")
    for more in ((), ("--no-stream",)):
        result = run_llm("-m", "gpt2np/bundled", "Once upon a time", *options, *more)
        assert result.stdout == expected.text + "\n"
        n_prompt, n_new = len(expected.prompt_ids), len(expected.ids)
        assert result.stderr.strip() == f"Token usage: {n_prompt} input, {n_new} output"


def test_a_base_model_continues_its_conversation(run_llm, lm):
    first = run_llm("-m", "gpt2np/bundled", "Once upon a time", *SHORT).stdout[:-1]
    more = run_llm("-c", " and the king", *SHORT).stdout[:-1]
    text = f"Once upon a time{first} and the king"
    assert more == lm.generate(text, seed=7, max_new_tokens=12).text


def test_log(run_llm):
    king = ("-m", "gpt2np/bundled", "The king", "-o", "max_new_tokens", "5", "-o", "seed")
    run_llm(*king, "1")
    [entry] = json.loads(run_llm("logs", "--json").stdout)
    assert entry["model"] == "gpt2np/bundled"
    assert entry["options_json"] == {"max_new_tokens": 5, "seed": 1}
    assert (entry["input_tokens"], entry["output_tokens"]) == (2, 5)
    assert entry["response_json"]["finish_reason"] == "length"
    seed = entry["response_json"]["seed"]
    assert run_llm(*king, seed).stdout[:-1] == entry["response"]


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("stop", '["the", " a"]', {"stop": ["the", " a"]}),
        ("logit_bias", '{"262": 9}', {"logit_bias": {262: 9.0}}),
        ("choices", '[" one", " two"]', {"choices": [" one", " two"]}),
        ("regex", " [a-z]+!", {"regex": " [a-z]+!"}),
    ],
)
def test_options(run_llm, lm, name, value, option):
    result = run_llm("-m", "gpt2np/bundled", "The king", *SHORT, "-o", name, value)
    assert result.stdout[:-1] == lm.generate("The king", seed=7, max_new_tokens=12, **option).text


def test_a_schema(run_llm):
    result = run_llm("-m", "gpt2np/bundled", "A fox: ", *SHORT, "--schema", "a int")
    answer = json.loads(result.stdout)
    assert list(answer) == ["a"] and isinstance(answer["a"], int)


def test_errors_are_one_line(run_llm):
    def error(*arguments):
        return run_llm(*arguments, code=1).stderr

    base = ("-m", "gpt2np/bundled", "Hi")
    message = "Error: bundled has no chat template; a system message needs one\n"
    assert error(*base, "-s", "Be brief") == message
    assert "less than or equal to 1" in error(*base, "-o", "top_p", "2")
    assert "valid number" in error(*base, "-o", "temperature", "warm")
    assert "Extra inputs are not permitted" in error(*base, "-o", "heat", "1")
    run_llm("aliases", "set", "gone", "gpt2np//no/such/folder")
    assert error("-m", "gone", "Hi").startswith("Error: there is no")


def test_a_model_with_a_chat_template_chats(run_llm, chat_folder):
    from gpt2np import load
    from gpt2np.chat import read_chat_template

    lm = load(chat_folder)
    template = read_chat_template(chat_folder, lm.tokenizer.vocabulary.special_tokens_map)
    options = {"seed": 7, "max_new_tokens": 12}
    session = ChatSession(lm, template, system="Be brief.", options=options)
    answers = []
    for message in ("Hello!", "And then?"):
        answers.append("".join(session.say(message)))
        session.seed = 7
    run_llm("aliases", "set", "chatty", f"gpt2np/{chat_folder}")
    assert run_llm("-m", "chatty", "Hello!", "-s", "Be brief.", *SHORT).stdout[:-1] == answers[0]
    assert run_llm("-c", "And then?", *SHORT).stdout[:-1] == answers[1]
    chat = ("chat", "-m", "chatty", "-s", "Be brief.", *SHORT)
    talk = run_llm(*chat, stdin="Hello!\nAnd then?\nquit\n")
    assert all(answer in talk.stdout for answer in answers)


def test_an_answer_contains_no_special_token(chat_folder):
    from gpt2np.llm_plugin import GPT2NPModel

    model = GPT2NPModel(str(chat_folder))
    conversation = model.conversation()
    options = {"regex": r"I am <\|end(?:oftext\|>|ing)", "stop": "xyz"}
    assert conversation.prompt("Who are you?", **options).text() in ("I am <|ending", "I am ")
    assert conversation.prompt("Who?", regex=r"I am <\|endoftext\|>").text() == "I am "
    assert conversation.prompt("Why?", max_new_tokens=3).text()


@pytest.mark.parametrize(
    "arguments", [pytest.param(("--help",), marks=pytest.mark.slow), ("models", "--options")]
)
def test_the_plugin_imports_neither_model_nor_numpy(site, tmp_path, arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(site)]),
        "LLM_USER_PATH": str(tmp_path / "user"),
        "LLM_LOAD_PLUGINS": "llm-gpt2np",
    }
    command = [sys.executable, "-c", LLM_WITHOUT_NUMPY, *arguments]
    result = subprocess.run(
        command, capture_output=True, check=True, text=True, env=environment, timeout=120
    )
    assert ("gpt2np/bundled" in result.stdout) == ("models" in arguments)
    light = {"errors", "options", "limits", "option_types", "generation", "generation.options"}
    modules = {name for name in result.stderr.split() if name.startswith("gpt2np.")}
    assert modules == {f"gpt2np.{name}" for name in (*light, "llm_plugin")}
