"""`python -m gpt2np generate` as a user runs it."""

import contextlib
import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
from helpers.command_line import run_here
from helpers.patched_cli import KILL_RANKS, REPORT_GENERATION, REPORT_START, WAIT_FOR_STDIN

from gpt2np import GenerationOptions, InvalidArgumentError, LanguageModel
from gpt2np.cli import generate as generate_command
from gpt2np.cli import main
from gpt2np.cli.parser import spell
from gpt2np.kernels.threads import THREAD_VARIABLES
from gpt2np.runtime.ranks import max_processes

COMMAND = [sys.executable, "-m", "gpt2np"]


def here(*arguments, stdin=b""):
    """Run `gpt2np generate` in this process, where the test is not about the process."""
    options = {"stdin": stdin, "encoding": None, "GPT2NP_MODEL": "bundled"}
    return run_here("generate", *arguments, **options)


@pytest.fixture(scope="module")
def expected(bundled):
    return LanguageModel.load(bundled).generate("Once upon a time", seed=1, max_new_tokens=30)


GENERATE = "generate The -n 3 --seed 1 --model bundled"
ONCE = ["Once upon a time", "--seed", "1", "-n", "30"]


class TestOutput:
    def test_prompt_and_continuation_on_stdout_the_rest_on_stderr(self, expected):
        result = here(*ONCE)
        assert result.returncode == 0
        assert result.stdout.decode() == f"Once upon a time{expected.text}\n"
        lines = result.stderr.decode().splitlines()
        assert lines[:2] == ["model: bundled", "seed: 1"]
        assert re.fullmatch(r"30 tokens, [\d.]+ tokens/s, finish reason: length", lines[2])

    def test_json(self, expected):
        result = here(*ONCE, "--json")
        content = json.loads(result.stdout)
        assert content.pop("tokens_per_second") > 0
        assert content == {
            "prompt": "Once upon a time",
            "prompt_ids": expected.prompt_ids,
            "prompt_tokens": expected.prompt_tokens,
            "text": expected.text,
            "ids": expected.ids,
            "tokens": expected.tokens,
            "finish_reason": "length",
            "seed": 1,
            "model": "bundled",
        }

    @pytest.mark.parametrize(("arguments", "end"), [(["-"], b""), ([], b"\n"), (["-"], b"\r\n")])
    def test_standard_input(self, expected, arguments, end):
        result = here(*arguments, *ONCE[1:], stdin=b"Once upon a time" + end)
        assert result.stdout.decode() == f"Once upon a time{expected.text}\n"

    def test_streams(self, bundled):
        """What is generated is written before anything more is."""
        process = subprocess.Popen(
            [*WAIT_FOR_STDIN, "generate", "The", "-n", "9", "--no-echo", "--seed", "1"],
            env=os.environ | {"GPT2NP_MODEL": "bundled"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        pieces = list(LanguageModel.load(bundled).stream("The", seed=1, max_new_tokens=9))
        first, rest = "".join(pieces[:5]).encode(), "".join(pieces[5:]).encode()
        assert process.stdout.read(len(first)) == first and rest
        assert process.communicate(b"x", timeout=60)[0] == rest + b"\n"

    def test_unicode(self):
        env = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1", "GPT2NP_MODEL": "bundled"}
        command = [*COMMAND, "generate", "中 \N{GRINNING FACE}", "-n", "3", "--seed", "1"]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=env)
        assert result.stdout.decode("utf-8").startswith("中 \N{GRINNING FACE}")

    def test_a_seed_is_chosen_and_told(self):
        first = here("The", "-n", "20")
        seed = re.search(r"seed: (\d+)", first.stderr.decode()).group(1)
        assert here("The", "-n", "20", "--seed", seed).stdout == first.stdout


SAMPLING = (
    "--min-p 0.05 --typical-p 0.9 --top-p 0.9 --repetition-penalty 1.2 --presence-penalty 0.5 "
    "--frequency-penalty 0.3 --no-repeat-ngram-size 4 --temperature 1.1 --top-k 100 "
    "--bad-word king --logit-bias 11=-3 --stop ? --stop-token-id 200 --ignore-eos"
)
SAMPLED = {
    "min_p": 0.05, "typical_p": 0.9, "top_p": 0.9, "repetition_penalty": 1.2,
    "presence_penalty": 0.5, "frequency_penalty": 0.3, "no_repeat_ngram_size": 4,
    "temperature": 1.1, "top_k": 100, "bad_words": ["king"], "logit_bias": {11: -3}, "stop": "?",
    "stop_token_ids": [200], "ignore_eos": True, "min_new_tokens": 30, "max_new_tokens": 60,
}  # fmt: skip


class TestOptions:
    @pytest.mark.parametrize(
        ("arguments", "options"),
        [
            ("--greedy", {"temperature": 0}),
            ("--num-beams 3 --num-return-sequences 2", {"num_beams": 3, "num_return_sequences": 2}),
            ("--choice ' a fox' --choice ' a 狐'", {"choices": [" a fox", " a 狐"]}),
            (r"--regex ' \d{2}:\d\d'", {"regex": r" \d{2}:\d\d"}),
            (f"{SAMPLING} --min-new-tokens 30 -n 60", SAMPLED),
        ],
    )
    def test_options_reach_the_library(self, lm, arguments, options):
        result = here("The king", "-n", "12", "--seed", "5", "--json", *shlex.split(arguments))
        best = lm.generate("The king", **{"max_new_tokens": 12, "seed": 5, **options})
        found = [json.loads(line) for line in result.stdout.splitlines()]
        expected = [(one.ids, one.text, one.finish_reason) for one in (best, *best.alternatives)]
        assert [(one["ids"], one["text"], one["finish_reason"]) for one in found] == expected
        is_sampled = options.get("temperature", 1) and not options.get("num_beams")
        assert (b"seed: 5" in result.stderr) == bool(is_sampled)

    def test_threads_and_dtype(self, monkeypatch, capsys):
        def load(model=None, dtype=None, **options):
            threads = os.environ["OPENBLAS_NUM_THREADS"]
            raise InvalidArgumentError(f"{model} {dtype} {threads}")

        for variable in THREAD_VARIABLES:
            monkeypatch.setenv(variable, "7")
        monkeypatch.setattr(LanguageModel, "load", load)
        options = ["--threads", "3", "--dtype", "float64", "--model", "bundled"]
        assert main.run(["generate", "x", *options]) == 2
        assert capsys.readouterr().err == "gpt2np generate: error: bundled float64 3\n"
        assert {os.environ[variable] for variable in THREAD_VARIABLES} == {"3"}

    def test_samples(self, bundled):
        result = here("The king", "--seed", "5", "-n", "9", "--samples", "3")
        lm = LanguageModel.load(bundled)
        singles = [lm.generate("The king", seed=5 + j, max_new_tokens=9).text for j in range(3)]
        assert result.stdout.decode() == "---\n".join(f"The king{text}\n" for text in singles)
        lines = result.stderr.decode().splitlines()
        assert lines[1] == "seeds: 5, 6, 7" and lines[2].startswith("27 tokens, ")

    def test_log_probabilities(self):
        arguments = ["Once", "--samples", "2", "-n", "6", "--seed", "1", "--json"]
        result = here(*arguments, "--logprobs", "1", "--prompt-logprobs", "0")
        found = [json.loads(line) for line in result.stdout.splitlines()]
        assert f"seeds: {found[0]['seed']}, {found[1]['seed']}" in result.stderr.decode()
        assert len(found) == 2
        for one in found:
            assert [token["id"] for token in one["logprobs"]] == one["ids"]
            assert all(len(token["top"]) == 1 for token in one["logprobs"])
            assert one["prompt_logprobs"][0] is None

    def test_what_the_model_proposes_contradicts_nothing(self, bundled, tmp_path):
        """Neither a seed beside the file's beams, nor what is for beams with them."""
        for file in bundled.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "generation_config.json").write_text('{"num_beams": 2, "top_k": 9}')
        arguments = ["Once", "-n", "4", "--model", str(tmp_path)]
        beams = here(*arguments)
        for more in (["--seed", "1"], ["--length-penalty", "1"], ["--greedy"], ["--top-k", "5"]):
            result = here(*arguments, *more)
            assert (result.returncode, result.stdout) == (0, beams.stdout)
        (tmp_path / "generation_config.json").write_text('{"length_penalty": 2, "top_p": 0.5}')
        assert here(*arguments, "--greedy", "--seed", "1").returncode == 0

    def test_what_is_rarely_needed_is_not_imported(self):
        script = (
            "import sys; from gpt2np.cli import main; main.run(['generate', 'x', '-n', '1', "
            "'--model', 'bundled', '--greedy']); "
            "names = ('beam_search', 'scoring'); "
            "rare = {'numpy.random', 'gpt2np.constraints'}; "
            "rare |= {f'gpt2np.generation.{name}' for name in names}; "
            "sys.exit(not rare.isdisjoint(sys.modules))"
        )
        assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0

    def test_a_full_context_is_told(self):
        result = here("-", "-n", "50", "--seed", "1", stdin=b"the " * 500)
        expected = "finish reason: length (the context of 512 tokens is full)"
        assert result.stderr.decode().splitlines()[-1].endswith(expected)

    def test_empty_prompt(self):
        for prompt in ("", "-"):
            result = here(prompt, "--seed", "1", "-n", "5", stdin=b"")
            assert result.returncode == 0 and result.stdout.strip()


@pytest.mark.parametrize(
    ("name", "nearest"), [("bundeld", "bundled"), ("gpt2-medum", "gpt2-medium")]
)
def test_a_misspelled_model(monkeypatch, name, nearest):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = here("x", "--model", name)
    assert (result.returncode, result.stdout) == (1, b"")
    assert f"did you mean '{nearest}'?" in result.stderr.decode().splitlines()[-1]
    assert b"did you mean" not in here("x", "--model", "someone/else").stderr


class TestInterruption:
    """Of a slow generation, so that no machine is done before the signal comes."""

    def start(self, *arguments, command=COMMAND):
        endless = ["-n", "500", "--ignore-eos", "--exact", "--seed", "2"]
        return subprocess.Popen(
            [*command, "generate", "The", *endless, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"GPT2NP_MODEL": "bundled"},
        )

    def is_its_beginning(self, text, bundled):
        endless = {"max_new_tokens": 500, "ignore_eos": True, "seed": 2}
        pieces, whole = LanguageModel.load(bundled, exact=True).stream("The", **endless), ""
        while len(whole) < len(text):
            whole += next(pieces)
        return whole.startswith(text)

    def test_ctrl_c_keeps_what_was_written(self, bundled):
        process = self.start("--no-echo")
        first = os.read(process.stdout.fileno(), 10)
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=60)
        assert process.returncode == 130
        text = (first + rest).decode().rstrip("\n")
        assert text and self.is_its_beginning(text, bundled)
        assert "Traceback" not in stderr.decode()
        assert stderr.decode().splitlines()[-1].endswith("finish reason: cancelled")

    def test_ctrl_c_with_json_gives_what_there_is(self, bundled):
        process = self.start("--json", command=REPORT_GENERATION)
        while process.stderr.readline() != b"begun\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        content = json.loads(stdout)
        assert content["finish_reason"] == "cancelled"
        assert self.is_its_beginning(content["text"], bundled)

    @pytest.mark.parametrize("delay", [0.0, 0.1, 0.4])
    def test_ctrl_c_at_the_start_leaves_no_traceback(self, delay):
        process = self.start(command=REPORT_START)
        assert process.stderr.readline() == b"ready\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130 and b"Traceback" not in stderr

    @pytest.mark.skipif(max_processes() == 1, reason="one process computes here")
    def test_a_process_of_the_model_is_killed(self):
        """The text goes on; one line tells of it."""
        arguments = "The", "-n", "30", "--ignore-eos", "--seed", "1", "--processes"
        whole = here(*arguments, "1").stdout
        done = subprocess.run(
            [*KILL_RANKS, "generate", *arguments, "2"],
            capture_output=True,
            timeout=60,
            env=os.environ | {"GPT2NP_MODEL": "bundled"},
        )
        assert (done.returncode, done.stdout) == (0, whole)
        lines = [line for line in done.stderr.decode().splitlines() if "process" in line]
        assert lines == ["warning: the model continues on one process: another rank has ended"]

    def test_a_closed_pipe_is_not_an_error(self):
        process = self.start("--no-echo")
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        stderr = process.stderr.read().decode()
        assert process.wait(timeout=60) == 0
        assert "Traceback" not in stderr and "Broken" not in stderr

    def shell(self, redirection, command=GENERATE):
        command = f'"$0" -m gpt2np {command} {redirection}'
        return subprocess.run(
            ["sh", "-c", command, sys.executable], capture_output=True, timeout=60
        )

    @pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
    @pytest.mark.parametrize("redirection", ["<&-", "2>&-", "2>/dev/full"])
    def test_closed_streams(self, redirection):
        result = self.shell(redirection)
        assert result.returncode == 0 and b"Traceback" not in result.stderr
        assert b"model:" not in result.stdout and result.stdout

    @pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
    @pytest.mark.parametrize(
        ("command", "redirection", "reason"),
        [
            (GENERATE, ">/dev/full", "No space left on device"),
            (GENERATE, ">&-", "Bad file descriptor"),
            (GENERATE, "| true", None),  # the reader has gone, which is no error
            ("info bundled", ">/dev/full", "No space left on device"),
            ("info bundled", "| true", None),
        ],
    )
    def test_a_result_that_can_not_be_written(self, command, redirection, reason):
        result = self.shell(redirection, command)
        name = command.partition(" ")[0]
        told = f"gpt2np {name}: error: cannot write standard output: {reason}\n"
        assert result.stderr.decode().endswith(told if reason else "")
        assert b"Traceback" not in result.stderr and b"Broken" not in result.stderr
        assert result.returncode == (1 if reason else 0)


OTHER_NAMES = {
    "num_return_sequences": "--samples",
    "stop_token_ids": "--stop-id",
    "bad_words": "--bad-word",
    "choices": "--choice",
}


def test_every_option_has_the_name_that_its_errors_give(capsys):
    with contextlib.suppress(SystemExit):
        main.run(["generate", "--help"])
    described = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    main.create_parser({"generate": generate_command}).parse_args(["generate"])
    for option in dataclasses.fields(GenerationOptions):
        with pytest.raises(InvalidArgumentError) as caught:
            GenerationOptions(**{option.name: {"a"}})
        name = caught.value.renamed(spell).partition(" is ")[0]
        if option.name == "bad_words_ids":  # only a model's file sets this option
            continue
        expected = OTHER_NAMES.get(option.name, f"--{option.name.replace('_', '-')}")
        assert name in described and name == expected, name
