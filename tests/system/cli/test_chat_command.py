"""`python -m gpt2np chat` as a person uses it at a terminal, and from a pipe."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest
from helpers.command_line import run_here
from helpers.patched_cli import SLOW_MODEL

fcntl, pty, termios = map(pytest.importorskip, ("fcntl", "pty", "termios"))

COMMAND = [sys.executable, "-m", "gpt2np", "chat"]
BUNDLED = ["--model", "bundled", "--seed", "1"]


def piped(text, *arguments):
    return run_here("chat", *BUNDLED, *arguments, stdin=text, encoding=None)


def _own_terminal():
    """Makes stdin the terminal whose Ctrl-C reaches this process."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, *arguments, command=COMMAND):
        ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(
            [*command, *BUNDLED, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_own_terminal,
            env=environment,
        )
        os.close(theirs)
        self.ours = ours
        self.seen = ""

    def wait_for(self, text, seconds=120):
        """All that is seen up to `text`, or to the end if it is None."""
        end = time.monotonic() + seconds
        while text is None or text not in self.seen:
            ready, _, _ = select.select([self.ours], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {text!r} after {self.seen!r}"
            try:
                piece = os.read(self.ours, 4096).decode(errors="replace").replace("\r\n", "\n")
            except OSError:  # nobody holds the other end any more
                break
            self.seen += piece
        if text is None:
            found, self.seen = self.seen, ""
        else:
            found, _, self.seen = self.seen.partition(text)
        return found

    def type(self, text):
        os.write(self.ours, text.encode())

    def ended(self):
        self.process.wait(timeout=60)
        return self.process.returncode


class TestAtATerminal:
    def test_a_conversation(self, lm, tmp_path):
        terminal = Terminal("-n", "12")
        start = terminal.wait_for(">>> ")
        assert "model: bundled\n" in start and "base model: it continues your text" in start
        terminal.type("Once upon a time\n")
        first = lm.generate("Once upon a time", seed=1, max_new_tokens=12).text
        assert terminal.wait_for(">>> ") == f"Once upon a time\n{first}\n"
        terminal.type("\n")
        second = lm.generate(f"Once upon a time{first}", seed=2, max_new_tokens=12).text
        assert terminal.wait_for(">>> ") == f"\n{second}\n"
        terminal.type("/retry\n")
        third = lm.generate(f"Once upon a time{first}", seed=3, max_new_tokens=12).text
        assert terminal.wait_for(">>> ") == f"/retry\n{third}\n"
        terminal.type("/set temperature hot\n")
        assert "error: temperature is 'hot'; it must be a number" in terminal.wait_for(">>> ")
        terminal.type('"""\n')
        terminal.wait_for("... ")
        terminal.type('/quit\n"""\n')
        fourth = lm.generate(
            f"Once upon a time{first}{third} /quit", seed=4, max_new_tokens=12
        ).text
        assert terminal.wait_for(">>> ") == f'/quit\n... """\n{fourth}\n'
        terminal.type("\x04")
        assert terminal.wait_for(None).strip() == "" and terminal.ended() == 0

    def test_ctrl_c_stops_the_answer_and_not_the_program(self, lm, tmp_path):
        command = [*SLOW_MODEL, "chat"]
        terminal = Terminal("-n", "500", "--ignore-eos", command=command)
        terminal.wait_for(">>> ")
        terminal.type("The king\n")
        terminal.wait_for("The king\n")
        begun = terminal.wait_for(" ")
        terminal.type("\x03")
        shown = f"{begun} {terminal.wait_for('>>> ')}".replace("^C", "").rstrip("\n")
        options = {"max_new_tokens": min(500, len(shown) + 9), "ignore_eos": True}
        whole = lm.generate("The king", seed=1, **options).text
        assert 0 < len(shown) < len(whole) and whole.startswith(shown)
        terminal.type("half a li\x03")
        assert "(press Ctrl-D or type /quit to exit)" in terminal.wait_for(">>> ")
        answer = next(whole[:n] for n in range(len(shown), 2000) if whole[:n].rstrip("\n") == shown)
        terminal.type("/set max_new_tokens 5\nand\n")
        terminal.wait_for(">>> and\n")
        between = "" if answer[-1].isspace() else " "
        told = f"The king{answer}{between}and"
        expected = lm.generate(told, seed=2, max_new_tokens=5, ignore_eos=True)
        assert terminal.wait_for(">>> ") == f"{expected.text}\n"
        terminal.type("/quit\n")
        terminal.wait_for(None)
        assert terminal.ended() == 0

    def test_lines_can_be_edited_and_come_back(self):
        pytest.importorskip("readline")
        terminal = Terminal("-n", "1")
        terminal.wait_for(">>> ")
        terminal.type("/sex\x7ft top_k 3\n")
        terminal.wait_for("top_k: 3\n")
        terminal.wait_for(">>> ")
        terminal.type("\x10\n")  # Ctrl-P: the line before
        terminal.wait_for("top_k: 3\n")
        terminal.type("/quit\n")
        terminal.wait_for(None)
        assert terminal.ended() == 0


class TestFromAPipe:
    def test_only_answers_on_stdout(self, lm):
        result = piped("The king\n\n/set top_k 1\n/retry\n", "-n", "8")
        first = lm.generate("The king", seed=1, max_new_tokens=8).text
        texts = [lm.generate(f"The king{first}", seed=2, max_new_tokens=8).text]
        texts += [lm.generate(f"The king{first}", seed=3, max_new_tokens=8, top_k=1).text]
        assert result.stdout.decode() == "".join(f"{text}\n" for text in [first, *texts])
        assert result.returncode == 0 and b">>>" not in result.stderr

    def test_what_goes_wrong_is_told_and_the_rest_done(self):
        result = piped(b"/dance\n/set top_p 7\nThe king\n", "-n", "3")
        told = [line for line in result.stderr.decode().splitlines() if line.startswith("error: ")]
        assert ["/dance" in told[0], "top_p is 7" in told[1]] == [True] * 2
        assert len(told) == 2 and result.returncode == 1 and result.stdout.strip()

    def test_a_model_with_a_template(self, lm, tmp_path, bundled):
        template = (
            "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
            "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
        )
        (tmp_path / "t.jinja").write_text(template)
        arguments = ["--chat-template", str(tmp_path / "t.jinja"), "--system", "Süß.", "-n", "9"]
        result = piped("Hello\n\nWhy?\n", *arguments)
        first = lm.generate("system: Süß.\nuser: Hello\nassistant:", seed=1, max_new_tokens=9)
        told = f"system: Süß.\nuser: Hello\nassistant: {first.text}\nuser: Why?\nassistant:"
        second = lm.generate(told, seed=2, max_new_tokens=9)
        assert result.stdout.decode() == f"{first.text}\n{second.text}\n"
        stderr = result.stderr.decode()
        assert f"chat template: {tmp_path / 't.jinja'}; /help" in stderr

    def test_ctrl_c_ends_a_script(self):
        endless = ["-n", "500", "--ignore-eos", "--exact"]
        process = subprocess.Popen(
            [*COMMAND, *BUNDLED, *endless],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process.stdin.write(b"The king\nThe queen\n")
        process.stdin.flush()
        assert process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 130 and b"Traceback" not in stderr

    def test_without_jinja2(self, tmp_path):
        (tmp_path / "jinja2.py").write_text("raise ImportError")
        (tmp_path / "t.jinja").write_text("{{ messages }}")
        result = subprocess.run(
            [*COMMAND, *BUNDLED, "--chat-template", str(tmp_path / "t.jinja")],
            input=b"",
            capture_output=True,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        )
        assert result.returncode == 1
        assert (
            b"need the package jinja2; in a checkout of gpt2np, run: pip install '.[chat]'"
            in result.stderr
        )
