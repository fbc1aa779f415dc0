"""Rendered templates against transformers' apply_chat_template, and what is said of broken ones."""

import json

import pytest
from helpers.chat_models import CHATML, LLAMA_2, TEMPLATES, chat_model

from gpt2np import InvalidArgumentError, Tokenizer, TokenizerError
from gpt2np.chat import ChatTemplate, read_chat_template


def message(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = [
    [message("user", "Hello")],
    [message("system", "Be short."), message("user", "Grüße 🦊\n\n<|im_end|>  ")],
    [message("user", " a "), message("assistant", " b\n"), message("user", "<b>\"c\" & 'd'</b>")],
    [
        *[message("system", "s\\n{{ x }}"), message("user", "skip"), message("assistant", "")],
        *[message("user", "{% raw %}"), message("assistant", "漢字"), message("user", "stop")],
    ],
    [message("user", ""), message("assistant", "last")],
]


NESTED = "".join(f"{{% for a{i} in [1] %}}" for i in range(50)) + "{% endfor %}" * 50


@pytest.fixture(scope="module")
def peer(bundled):
    """transformers' tokenizer of the bundled model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(bundled)


@pytest.fixture(scope="module")
def roles(bundled):
    return Tokenizer.load(bundled).vocabulary.special_tokens_map


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_rendered_as_by_transformers(peer, roles, name, add_generation_prompt):
    template = ChatTemplate(TEMPLATES[name], roles, "x")
    for messages in CONVERSATIONS:
        expected = peer.apply_chat_template(
            messages,
            chat_template=TEMPLATES[name],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
        )
        rendered = template.render(messages, add_generation_prompt=add_generation_prompt)
        assert rendered == expected


def test_the_peers_ids_of_a_whole_prompt(peer, tmp_path, bundled):
    folder = chat_model(tmp_path / "m", bundled, LLAMA_2)
    tokenizer = Tokenizer.load(folder)
    template = read_chat_template(folder, tokenizer.vocabulary.special_tokens_map)
    messages = [message("user", "Hello"), message("assistant", "Hi"), message("user", "Who?")]
    expected = peer.apply_chat_template(messages, chat_template=LLAMA_2, return_dict=False)
    assert tokenizer.encode(template.render(messages), allowed_special="all") == expected
    assert expected.count(4095) == 3  # <|endoftext|>, which begins and ends


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([message("user", "a"), message("user", "b")], "must alternate, but message 2 does not"),
        ([message("user", "a"), message("tool", "b")], "no such role: tool"),
    ],
)
def test_raise_exception_is_one_line(peer, roles, messages, told):
    from jinja2 import TemplateError

    with pytest.raises(TemplateError, match=told):
        peer.apply_chat_template(messages, chat_template=LLAMA_2, tokenize=False)
    with pytest.raises(
        InvalidArgumentError, match=f"refuses this conversation: .*{told}"
    ) as caught:
        ChatTemplate(LLAMA_2, roles, "x").render(messages)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"content": "b"}, {"role": "user"}, message("user", ["a"])])
def test_what_is_no_message(wrong):
    with pytest.raises(InvalidArgumentError, match=r"message is .* must be a dict with the texts"):
        ChatTemplate(CHATML, {}, "x").render([message("user", "a"), wrong])


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("\n\n{{ 'a", "the chat template is damaged: line 3"),
        ("{{ nothing.at.all }}", "fails: 'nothing' is undefined"),
        ("{{ 1 / 0 }}", "fails: division by zero"),
        ("{{ messages | no_such_filter }}", "no_such_filter"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "fails: maximum recursion"),
        ("{% for i in range(1000000) %}{% endfor %}", "fails: Range too big"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe|undefined"),
        ("{{ messages.append(1) }}", "fails: .*not safely callable|unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        (NESTED, "too many statically nested blocks"),
        ("{{ 10 ** 1000000 }}", "Exceeds the limit"),
    ],
)
def test_a_template_that_fails_or_reaches_out(source, told):
    with pytest.raises(TokenizerError, match=told) as caught:
        ChatTemplate(source, {}, "model/chat_template.jinja").render([message("user", "a")])
    assert str(caught.value).startswith("model/chat_template.jinja: ")
    assert "\n" not in str(caught.value)


class TestWhereItComesFrom:
    def rendered(self, folder):
        return read_chat_template(folder).render([message("user", "a")])

    def test_the_file_and_the_config(self, tmp_path, bundled):
        assert self.rendered(chat_model(tmp_path / "a", bundled, "1")) == "1"
        inside = chat_model(tmp_path / "b", bundled, "2", as_file=False)
        assert self.rendered(inside) == "2"
        (inside / "chat_template.jinja").write_text("3")
        assert self.rendered(inside) == "3"
        several = [{"name": "rag", "template": "1"}, {"name": "default", "template": "2"}]
        assert self.rendered(chat_model(tmp_path / "c", bundled, several, as_file=False)) == "2"
        rag = chat_model(tmp_path / "d", bundled, several[:1], as_file=False)
        assert read_chat_template(rag) is None

    def test_as_transformers_reads_and_writes_it(self, tmp_path, bundled, peer):
        from transformers import AutoTokenizer

        peer.chat_template = CHATML
        peer.save_pretrained(tmp_path / "new")
        peer.save_pretrained(tmp_path / "old", save_jinja_files=False)
        peer.chat_template = None
        for folder, file in (("new", "chat_template.jinja"), ("old", "tokenizer_config.json")):
            template = read_chat_template(tmp_path / folder)
            assert template.origin == str(tmp_path / folder / file)
            again = AutoTokenizer.from_pretrained(tmp_path / folder)
            messages = CONVERSATIONS[2]
            assert template.render(messages) == again.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )

    @pytest.mark.parametrize("content", [b"\xff", b"x" * (3 << 20), None])
    def test_a_file_that_is_none(self, tmp_path, content):
        path = tmp_path / "chat_template.jinja"
        path.mkdir() if content is None else path.write_bytes(content)
        with pytest.raises(TokenizerError, match=r"chat_template\.jinja (is|has)"):
            read_chat_template(tmp_path)

    def test_a_config_that_holds_something_else(self, tmp_path):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": 7}))
        with pytest.raises(TokenizerError, match="chat_template is 7"):
            read_chat_template(tmp_path)
