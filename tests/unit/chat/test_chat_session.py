"""Conversations with the bundled model: each answer is what a fresh start gives."""

import pytest
from helpers.chat_models import CHATML, LLAMA_2, chat_model

from gpt2np import ContextLengthError, GenerationOptions, InvalidArgumentError, load
from gpt2np.chat import ChatSession, ChatTemplate, read_chat_template
from gpt2np.chat.commands import QUIT, RETRY, run_command
from gpt2np.chat.session import joined_text
from gpt2np.generation.ngram_table import read_ngram_table
from gpt2np.hub.model_files import NGRAM_TABLE_FILE
from gpt2np.model import KVCache


@pytest.fixture(scope="module")
def template(tmp_path_factory, bundled):
    return read_chat_template(str(chat_model(tmp_path_factory.mktemp("m") / "m", bundled, CHATML)))


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def answer(session, text):
    return "".join(session.say(text))


def test_each_message_is_answered_before_the_next(lm):
    session = ChatSession(lm, options={"max_new_tokens": 3})
    with pytest.raises(InvalidArgumentError, match="text is 5; it must be a text"):
        session.say(5)
    pieces = session.say("Once")
    with pytest.raises(InvalidArgumentError, match="no answer yet; read it, or retry"):
        session.say("upon")
    first = "".join(pieces)
    assert session.messages == [user("Once"), assistant(first)]
    second = answer(session, "upon")
    assert session.messages[2:] == [user("upon"), assistant(second)]


def test_a_closed_answer_is_kept_as_far_as_it_was_read(lm):
    session = ChatSession(lm, options={"seed": 3, "max_new_tokens": 40})
    pieces = session.say("The king said")
    read = next(pieces) + next(pieces)
    pieces.close()
    kept = session.messages[-1]["content"]
    assert kept.startswith(read) and len(kept) < 40
    assert session.completion.finish_reason == "cancelled"
    fresh = lm.generate("The king said" + kept, seed=4, max_new_tokens=40).text
    assert answer(session, "") == fresh


class TestAnswers:
    def test_of_a_template_are_those_of_its_text(self, lm, template):
        session = ChatSession(lm, template, system="Be kind.", options={"seed": 5})
        session.options |= {"max_new_tokens": 12}
        told = "<|im_start|>system\nBe kind.<|im_end|>\n"
        for number, text in enumerate(["Who are you?", "Why?", "And then?"]):
            told += f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
            fresh = lm.generate(told, seed=5 + number, max_new_tokens=12).text
            assert answer(session, text) == fresh
            told += f"{fresh}<|im_end|>\n"
            assert number == 0 or session.n_reused > 10

    def test_of_a_base_model_are_those_of_the_joined_text(self, lm):
        session = ChatSession(lm, options={"seed": 1, "max_new_tokens": 15})
        text = ""
        for number, said in enumerate(["Once upon a time", "The fox", "", "\nThe end"]):
            apart = bool(text) and not said[:1].isspace() and said != "" and not text[-1].isspace()
            text += " " * apart + said
            fresh = lm.generate(text, seed=1 + number, max_new_tokens=15).text
            assert answer(session, said) == fresh
            text += fresh
        assert joined_text(session.messages) == text

    def test_again_with_the_next_seed(self, lm):
        session = ChatSession(lm, options={"seed": 7, "max_new_tokens": 10})
        first = answer(session, "The king")
        second = "".join(session.retry())
        assert first == lm.generate("The king", seed=7, max_new_tokens=10).text
        assert second == lm.generate("The king", seed=8, max_new_tokens=10).text != first
        assert session.messages == [user("The king"), assistant(second)]

    def test_of_a_base_model_beyond_the_context(self, lm):
        session = ChatSession(lm, options={"seed": 1, "max_new_tokens": 5, "ignore_eos": True})
        answer(session, "Once upon a time, " * 120)
        text = joined_text(session.messages)
        ids = lm.tokenizer.encode(text)
        assert len(ids) > 512
        fresh = lm.generate(ids[-256:], seed=2, max_new_tokens=5, ignore_eos=True).text
        assert answer(session, "") == fresh

    def test_without_room_the_first_exchanges_are_left_out(self, lm, template):
        session = ChatSession(lm, template, system="Sys.", options={"max_new_tokens": 8, "seed": 1})
        for number in range(4):
            answer(session, f"Number {number}: " + "word " * 120)
        assert 0 < session.left_out < 3
        answer(session, "short")
        prompt = lm.tokenizer.decode(session.completion.prompt_ids)
        first = f"<|im_start|>user\nNumber {session.left_out}"
        assert prompt.startswith(f"<|im_start|>system\nSys.<|im_end|>\n{first}")
        with pytest.raises(ContextLengthError):
            session.say("word " * 600)
        assert len(session.messages) == 11

    def test_after_ctrl_c_within_a_step(self, lm, bundled, monkeypatch):
        """When guessed ids have been through the model and before the wrong ones are dropped."""
        said = "one two three one two three one two four one two"
        options = {"max_new_tokens": 60, "temperature": 0, "seed": 1}
        table = read_ngram_table(bundled / NGRAM_TABLE_FILE)
        monkeypatch.setattr(lm.draft_source, "draft", table)  # also without small-matrix kernels
        session = ChatSession(lm, options=options)
        truncate = KVCache.truncate

        def interrupted(cache, length):
            if length < cache.length:
                raise KeyboardInterrupt
            truncate(cache, length)

        pieces = session.say(said)
        with monkeypatch.context() as patched:
            patched.setattr(KVCache, "truncate", interrupted)
            with pytest.raises(KeyboardInterrupt):
                "".join(pieces)
        kept = session.messages[-1]["content"]
        again = answer(session, "")
        assert session.n_reused > 10
        options |= {"seed": 2}
        assert again == lm.generate(session.completion.prompt_ids, **options).text
        assert lm.tokenizer.decode(session.completion.prompt_ids) == said + kept

    def test_that_spell_a_special_token_end_before_it(self, lm, template):
        session = ChatSession(lm, template, options={"seed": 1})
        session.options = {"regex": r"Yes(?:<\|endoftext\|>){0,2}[.!]", "seed": 1}
        assert answer(session, "Well?") in ("Yes", "Yes.", "Yes!")
        assert "<|endoftext|>" not in session.messages[-1]["content"]

    @pytest.mark.parametrize(
        "defaults", [{"num_beams": 4, "temperature": 0}, {"num_return_sequences": 2}]
    )
    def test_defaults_of_several_texts_do_not_count(self, defaults):
        lm = load("bundled")
        lm.defaults = GenerationOptions(**defaults)
        session = ChatSession(lm, options={"seed": 1, "max_new_tokens": 4})
        assert run_command(session, "/set top_k 5") == "top_k: 5"
        fresh = lm.generate(
            "A fox", seed=1, max_new_tokens=4, top_k=5, num_beams=1, num_return_sequences=1
        )
        assert answer(session, "A fox") == fresh.text


class TestRefusals:
    def test_special_tokens_can_not_be_forged(self, lm, template):
        session = ChatSession(lm, template)
        with pytest.raises(InvalidArgumentError, match=r"user message .* contains <\|endoftext\|>"):
            session.say("a<|endoftext|>b")
        assert session.messages == []
        told = ChatSession(lm, template, system="<|endoftext|>")
        with pytest.raises(InvalidArgumentError, match="the system message"):
            told.say("a")
        session.messages = [user("hi"), assistant("x<|endoftext|>y")]
        with pytest.raises(InvalidArgumentError, match="the assistant message"):
            session.say("next")

    def test_a_template_that_refuses(self, lm, tmp_path, bundled):
        folder = chat_model(tmp_path / "m", bundled, LLAMA_2)
        template = read_chat_template(folder, lm.tokenizer.vocabulary.special_tokens_map)
        session = ChatSession(lm, template)
        session.messages += [user("unanswered"), user("answered"), assistant("yes")]
        with pytest.raises(InvalidArgumentError, match="must alternate"):
            session.say("more")
        assert len(session.messages) == 3

    @pytest.mark.parametrize("name", ["num_return_sequences", "num_beams", "logprobs"])
    def test_options_that_have_no_place_here(self, lm, name):
        with pytest.raises(InvalidArgumentError, match=f"a chat does not support {name}"):
            ChatSession(lm, options={name: 2})

    def test_a_template_that_gives_no_text(self, lm):
        session = ChatSession(lm, ChatTemplate("{{ messages[0].contents }}", {}, "x.jinja"))
        with pytest.raises(InvalidArgumentError, match=r"x\.jinja: the chat template gives no"):
            session.say("Hello")
        assert session.messages == []

    def test_a_template_is_no_text(self, lm):
        with pytest.raises(InvalidArgumentError, match="must be from read_chat_template, or None"):
            ChatSession(lm, "{{ messages }}")

    def test_no_system_message_for_a_base_model(self, lm):
        with pytest.raises(InvalidArgumentError, match="has no chat template"):
            ChatSession(lm, system="Be kind.")


class TestCommands:
    @pytest.fixture
    def session(self, lm):
        session = ChatSession(lm, options={"seed": 1, "max_new_tokens": 5})
        answer(session, "The king")
        return session

    def test_set(self, session):
        assert run_command(session, "/set temperature 0.7") == "temperature: 0.7"
        assert run_command(session, "/set top-k 5") == "top_k: 5"
        assert run_command(session, '/set stop ["\\n", "x"]') == "stop: ('\\n', 'x')"
        assert run_command(session, "/set stop word") == "stop: ('word',)"
        assert run_command(session, "/set seed 9") == "seed: 9" and session.seed == 9
        run_command(session, "/set seed none")
        assert session.seed != 9
        assert session.options["top_k"] == 5

    def test_set_none_is_the_default_again(self, session):
        before = dict(session.options)
        run_command(session, '/set choices ["a", "b"]')
        assert run_command(session, "/set choices none") == "choices: ()"
        assert run_command(session, "/set regex none") == "regex: None"
        assert session.options == before

    def test_none_is_a_value_of_draft(self, session):
        assert run_command(session, "/set draft none") == "draft: none"
        assert session.options["draft"] == "none"
        with pytest.raises(InvalidArgumentError, match="draft is 'other'"):
            run_command(session, "/set draft other")

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("/set temperature -1", "temperature is -1; it must be"),
            ("/set temperature hot", "temperature is 'hot'"),
            ("/set colour red", "unknown option colour; the options are .*top_k"),
            ("/set samples 3", "unknown option samples"),
            ("/set top_k", "/set top_k needs a value"),
            ("/set seed x", "seed is 'x'"),
            ("/dance", "unknown command /dance; /help"),
            (f"/set top_k {'[' * 100_000}", "top_k is"),
        ],
    )
    def test_what_can_not_be_done(self, session, line, told):
        before = dict(session.options)
        with pytest.raises(InvalidArgumentError, match=told) as caught:
            run_command(session, line)
        assert "\n" not in str(caught.value) and session.options == before

    def test_the_others(self, session):
        assert run_command(session, "/clear") == "conversation cleared"
        assert session.messages == []
        with pytest.raises(InvalidArgumentError, match="the conversation is empty"):
            session.retry()
        assert run_command(session, "/retry") == RETRY
        assert run_command(session, "/quit") == QUIT
        assert "/set NAME VALUE" in run_command(session, "/help")
