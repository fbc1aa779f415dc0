"""Conversations with the bundled model: each answer is what a fresh start gives."""

import json
from functools import partial

import pytest
from helpers.chat_models import CHATML, LLAMA_2, chat_model

from gpt2np import (
    ContextLengthError,
    GenerationOptions,
    InvalidArgumentError,
    load,
)
from gpt2np.chat import (
    ChatSession,
    ChatTemplate,
    Conversation,
    Exchange,
    read_chat_template,
    read_conversation,
)
from gpt2np.chat.commands import QUIT, RETRY, run_command
from gpt2np.constraints import text_constraint
from gpt2np.generation.ngram_table import read_ngram_table
from gpt2np.hub.model_files import NGRAM_TABLE_FILE
from gpt2np.model import KVCache


@pytest.fixture(scope="module")
def template(tmp_path_factory, bundled):
    return read_chat_template(str(chat_model(tmp_path_factory.mktemp("m") / "m", bundled, CHATML)))


def answer(session, text):
    return finished(session, session.say(text))


def finished(session, stream):
    text = "".join(stream)
    session.finish(stream)
    return text


def computed(session):
    """Lets the session answer, and counts the ids that go through the model for the prompt."""
    stream = session.say("And then?")
    count = len(stream.sequence.pending_ids())
    finished(session, stream)
    return count, len(stream.sequence.request.ids)


def test_each_answer_is_finished_before_the_next_message(lm):
    session = ChatSession(lm, options={"max_new_tokens": 3})
    with pytest.raises(InvalidArgumentError, match="text is 5; it must be a text"):
        session.say(5)
    first = session.say("Once")
    with pytest.raises(InvalidArgumentError, match="no answer yet: retry, or finish its stream"):
        session.say("upon")
    assert [exchange.message for exchange in session.conversation.exchanges] == ["Once"]
    with pytest.raises(InvalidArgumentError, match="not complete: read its stream, or cancel it"):
        session.finish(first)
    finished(session, first)
    second = session.say("upon")
    message = "finished already, or does not belong to the last message"
    with pytest.raises(InvalidArgumentError, match=message):
        session.finish(first)
    finished(session, second)
    with pytest.raises(InvalidArgumentError, match=message):
        session.finish(second)
    assert all(exchange.answer for exchange in session.conversation.exchanges)


def test_an_answer_belongs_to_its_own_message(lm):
    """Neither a cleared conversation nor another one gets the answer of a stream."""
    session = ChatSession(lm, options={"max_new_tokens": 3})
    for other in ([], [Exchange("Once", "upon")]):
        stream = session.say("Once")
        session.conversation = Conversation(None, other)
        with pytest.raises(InvalidArgumentError, match="does not belong to the last message"):
            finished(session, stream)
        assert session.conversation.exchanges == other


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
        assert session.conversation.joined_text() == text

    def test_need_only_what_is_new(self, lm, template):
        session = ChatSession(lm, template, options={"seed": 2, "max_new_tokens": 10})
        answer(session, "Tell me of the king and his three daughters, who lived by the sea. " * 3)
        new, whole = computed(session)
        assert new < 60 < 100 < whole

    def test_after_a_cancelled_one(self, lm):
        session = ChatSession(lm, options={"seed": 3, "max_new_tokens": 40})
        stream = session.say("The king said")
        pieces = [next(stream), next(stream)]
        pieces.append(stream.cancel())
        session.finish(stream)
        text = "The king said" + "".join(pieces)
        assert session.conversation.exchanges[0].answer == "".join(pieces)
        assert answer(session, "") == lm.generate(text, seed=4, max_new_tokens=40).text

    def test_again_with_the_next_seed(self, lm):
        session = ChatSession(lm, options={"seed": 7, "max_new_tokens": 10})
        first = answer(session, "The king")
        second = finished(session, session.retry())
        assert first == lm.generate("The king", seed=7, max_new_tokens=10).text
        assert second == lm.generate("The king", seed=8, max_new_tokens=10).text != first
        assert session.conversation.exchanges == [Exchange("The king", second)]

    def test_of_a_base_model_beyond_the_context(self, lm):
        session = ChatSession(lm, options={"seed": 1, "max_new_tokens": 5, "ignore_eos": True})
        answer(session, "Once upon a time, " * 120)
        text = session.conversation.joined_text()
        assert len(lm.tokenizer.encode(text)) > 512
        fresh = lm.generate(text, seed=2, max_new_tokens=5, ignore_eos=True, window=256).text
        assert answer(session, "") == fresh

    def test_without_room_the_first_exchanges_are_left_out(self, lm, template):
        session = ChatSession(lm, template, system="Sys.", options={"max_new_tokens": 8, "seed": 1})
        for number in range(4):
            answer(session, f"Number {number}: " + "word " * 120)
        assert 0 < session.left_out < 3
        stream = session.say("short")
        prompt = lm.tokenizer.decode(stream.sequence.request.ids)
        first = f"<|im_start|>user\nNumber {session.left_out}"
        assert prompt.startswith(f"<|im_start|>system\nSys.<|im_end|>\n{first}")
        finished(session, stream)
        with pytest.raises(ContextLengthError):
            session.say("word " * 600)
        assert len(session.conversation.exchanges) == 5

    def test_drafts_change_no_answer(self, lm, bundled, monkeypatch):
        table = read_ngram_table(bundled / NGRAM_TABLE_FILE)
        monkeypatch.setattr(lm, "draft", table)  # also without small-matrix kernels
        answers = []
        for draft in ("auto", "none"):
            session = ChatSession(lm, options={"max_new_tokens": 40, "seed": 1, "draft": draft})
            for said in ("one two three one two", "The king said", ""):
                stream = session.say(said)
                answers.append("".join(stream))
                session.finish(stream)
        assert answers[:3] == answers[3:]

    def test_after_ctrl_c_within_a_step(self, lm, bundled, monkeypatch):
        """When guessed ids have been through the model and before the wrong ones are dropped."""
        said = "one two three one two three one two four one two"
        options = {"max_new_tokens": 60, "temperature": 0, "seed": 1}
        table = read_ngram_table(bundled / NGRAM_TABLE_FILE)
        monkeypatch.setattr(lm, "draft", table)  # also without small-matrix kernels
        session = ChatSession(lm, options=options)
        stream, truncate = session.say(said), KVCache.truncate

        def interrupted(cache, length):
            if stream.sequence.ids and length < cache.length:
                raise KeyboardInterrupt
            truncate(cache, length)

        with monkeypatch.context() as patched:
            patched.setattr(KVCache, "truncate", interrupted)
            with pytest.raises(KeyboardInterrupt):
                "".join(stream)
        stream.cancel()
        session.finish(stream)
        assert session.n_cached == stream.sequence.length - 1 < stream.sequence.cache.length
        again = session.say("")
        assert again.sequence.cache.length == session.n_reused > 10
        options |= {"seed": 2, "window": 256}
        fresh = lm.generate(again.sequence.request.ids, **options)
        assert finished(session, again) == fresh.text

    def test_that_spell_a_special_token_end_before_it(self, lm, template, monkeypatch):
        constraint = text_constraint(
            lm.tokenizer.vocabulary.token_bytes,
            lm.model.config.vocab_size,
            lm.eos_token_ids,
            choices=("Yes<|endoftext|>No", "Yes<|endoftext|>Never"),
        )
        session = ChatSession(lm, template, options={"seed": 1})
        stream = partial(lm.stream, constraint=constraint)
        with monkeypatch.context() as patched:
            patched.setattr(lm, "stream", stream)
            assert answer(session, "Well?") == "Yes"
        assert session.conversation.exchanges[0].answer == "Yes"
        assert session.cut_at == "<|endoftext|>"
        session.options = {"regex": r"Yes(?:<\|endoftext\|>){0,2}[.!]", "seed": 1}
        assert answer(session, "Well?") in ("Yes.", "Yes!")
        assert session.cut_at is None
        session.options = {"max_new_tokens": 3}
        stream = session.say("And then?")
        assert lm.tokenizer.eos_token_id not in stream.sequence.request.ids
        finished(session, stream)
        assert session.cut_at is None

    @pytest.mark.parametrize(
        "defaults", [{"num_beams": 4, "temperature": 0}, {"num_return_sequences": 2}]
    )
    def test_defaults_of_several_texts_do_not_count(self, defaults):
        lm = load("bundled")
        lm.defaults = GenerationOptions(**defaults)
        session = ChatSession(lm, options={"seed": 1, "max_new_tokens": 4})
        assert run_command(session, "/set top_k 5") == "top_k: 5"
        assert "top_k: 5" in run_command(session, "/set").splitlines()
        fresh = lm.generate(
            "A fox", seed=1, max_new_tokens=4, top_k=5, num_beams=1, num_return_sequences=1
        )
        assert answer(session, "A fox") == fresh.text


class TestRefusals:
    def test_special_tokens_can_not_be_forged(self, lm, template):
        session = ChatSession(lm, template)
        with pytest.raises(InvalidArgumentError, match=r"user message .* contains <\|endoftext\|>"):
            session.say("a<|endoftext|>b")
        assert session.conversation.exchanges == []
        told = ChatSession(lm, template, system="<|endoftext|>")
        with pytest.raises(InvalidArgumentError, match="the system message"):
            told.say("a")

    def test_nor_by_a_loaded_answer(self, lm, template, tmp_path):
        forged = Conversation(None, [Exchange("hi", "x<|endoftext|>y")])
        forged.save(tmp_path / "x.json")
        session = ChatSession(lm, template)
        with pytest.raises(
            InvalidArgumentError, match=r"the assistant message .* contains <\|endo"
        ):
            run_command(session, f"/load {tmp_path / 'x.json'}")
        assert session.conversation.exchanges == []
        session.conversation = forged
        with pytest.raises(InvalidArgumentError, match="the assistant message"):
            session.say("next")
        session = ChatSession(lm)  # a base model has no turns
        assert run_command(session, f"/load {tmp_path / 'x.json'}").startswith("2 messages")
        assert lm.tokenizer.eos_token_id not in session.say("next").sequence.request.ids

    def test_a_template_that_refuses(self, lm, tmp_path, bundled):
        folder = chat_model(tmp_path / "m", bundled, LLAMA_2)
        template = read_chat_template(folder, lm.tokenizer.vocabulary.special_tokens_map)
        session = ChatSession(lm, template)
        session.conversation.exchanges += [Exchange("unanswered"), Exchange("answered", "yes")]
        with pytest.raises(InvalidArgumentError, match="must alternate"):
            session.say("more")
        assert len(session.conversation.exchanges) == 2

    @pytest.mark.parametrize("name", ["num_return_sequences", "num_beams", "logprobs"])
    def test_options_that_have_no_place_here(self, lm, name):
        with pytest.raises(InvalidArgumentError, match=f"a chat does not support {name}"):
            ChatSession(lm, options={name: 2})

    def test_a_template_that_gives_no_text(self, lm):
        session = ChatSession(lm, ChatTemplate("{{ messages[0].contents }}", {}, "x.jinja"))
        with pytest.raises(InvalidArgumentError, match=r"x\.jinja: the chat template gives no"):
            session.say("Hello")
        assert session.conversation.exchanges == []

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
        assert run_command(session, '/set stop ["\\n", "x"]') == "stop: ['\\n', 'x']"
        assert run_command(session, "/set stop word") == "stop: word"
        assert run_command(session, "/set seed 9") == "seed: 9" and session.seed == 9
        run_command(session, "/set seed none")
        assert session.seed != 9
        assert "temperature: 0.7" in run_command(session, "/set").splitlines()
        assert session.options["top_k"] == 5

    def test_set_none_is_the_default_again(self, session):
        before = dict(session.options)
        run_command(session, '/set choices ["a", "b"]')
        assert run_command(session, "/set choices none") == "choices: ()"
        run_command(session, "/set window 9")
        assert run_command(session, "/set window none") == "window: 256"
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
            ("/save", "/save needs a file name"),
            ("/load", "/load needs a file name"),
            ("/load /nowhere/x.json", "cannot read /nowhere/x.json: No such file"),
            ("/load /", "^/ is not a file$"),
            ("/save /nowhere/x.json", "cannot write /nowhere/x.json: No such file"),
            ("/system Be kind.", "has no chat template"),
            (f"/save {'x' * 300}", "File name too long"),
            ("/save ~nobody-at-all/x", "cannot write"),
            (f"/set top_k {'[' * 100_000}", "top_k is"),
        ],
    )
    def test_what_can_not_be_done(self, session, line, told):
        before = dict(session.options)
        with pytest.raises(InvalidArgumentError, match=told) as caught:
            run_command(session, line)
        assert "\n" not in str(caught.value) and session.options == before

    def test_undo_and_clear(self, session):
        assert run_command(session, "/undo") == "removed: The king"
        with pytest.raises(InvalidArgumentError, match="the conversation is empty"):
            run_command(session, "/undo")
        with pytest.raises(InvalidArgumentError, match="the conversation is empty"):
            session.retry()
        answer(session, "The king")
        assert run_command(session, "/clear") == "conversation cleared"
        assert session.conversation.exchanges == []

    def test_save_and_load(self, session, tmp_path):
        path = tmp_path / "a b.json"
        assert run_command(session, f"/save {path}") == f"2 messages in {path}"
        assert run_command(session, f"/save {path}") == f"2 messages in {path}"  # its own
        (tmp_path / "other.json").write_text("precious")
        with pytest.raises(InvalidArgumentError, match="exists already"):
            run_command(session, f"/save {tmp_path / 'other.json'}")
        before = session.conversation
        run_command(session, "/clear")
        assert run_command(session, f"/load {path}") == f"2 messages from {path}"
        assert session.conversation.messages()[0] == {"role": "user", "content": "The king"}
        assert session.conversation is not before

    def test_the_others(self, session):
        assert run_command(session, "/retry") == run_command(session, "/regenerate") == RETRY
        assert {run_command(session, f"/{name}") for name in ("quit", "exit", "bye")} == {QUIT}
        assert "/set [NAME VALUE]" in run_command(session, "/help") == run_command(session, "/?")
        assert "of 512 in the KV cache" in run_command(session, "/show")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"messages": [{"role": "wizard", "content": "a"}]}, "message 1 has the role 'wizard'"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "'assistant' out of order"),
        ({"messages": [{"role": "user", "content": "a"}] * 2}, "message 2 .* out of order"),
        ({"messages": [{"role": "user"}]}, "message 1 must have a role and a content"),
        ({"messages": 3}, 'expected a list "messages"'),
        ({}, 'expected a list "messages"'),
        ([], "expected a JSON object"),
    ],
)
def test_files_that_hold_no_conversation(tmp_path, content, told):
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(InvalidArgumentError, match=told):
        read_conversation(tmp_path / "x.json")


def test_a_saved_conversation_is_the_same(tmp_path):
    whole = Conversation("s", [Exchange("a\n", "ä 🦊"), Exchange("b", ""), Exchange("c")])
    assert whole.save(str(tmp_path / "x.json")) == 6
    assert read_conversation(tmp_path / "x.json") == whole
