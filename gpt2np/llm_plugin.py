"""A plugin that runs gpt2np's models in the command line tool `llm` (extra `llm`).

    llm -m gpt2np/bundled "Once upon a time" -o temperature 0.5

`gpt2np/bundled` is always there. An alias adds any other model, a folder or an id on the Hub:

    llm aliases set gpt2 gpt2np/openai-community/gpt2
    llm -m gpt2 "Once upon a time"
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import llm
from llm.parts import TextPart
from pydantic import BeforeValidator, Field, create_model

from gpt2np.errors import GPT2NPError
from gpt2np.generation.options import ONE_TEXT_ONLY, GenerationOptions
from gpt2np.option_types import option_type
from gpt2np.options import options_of

if TYPE_CHECKING:
    from gpt2np.chat import ChatSession, ChatTemplate
    from gpt2np.language_model import LanguageModel

_PREFIX = "gpt2np/"


def _from_text(value: object) -> object:
    """Return what a text holds as JSON, if it is a list or an object; another value stays."""
    if isinstance(value, str) and value.startswith(("[", "{")):
        with suppress(ValueError):
            return json.loads(value)
    return value


def _option_fields() -> dict[str, Any]:
    """Return pydantic's fields for the options of one text."""
    fields: dict[str, Any] = {}
    for name, option in options_of(GenerationOptions).items():
        kind = option_type(option)
        if option.is_list:
            kind = Annotated[kind, BeforeValidator(_from_text)]
        if option.group not in ONE_TEXT_ONLY:
            fields[name] = kind | None, Field(None, description=option.help)
    return fields


_PluginOptions = create_model("Options", __base__=llm.Options, **_option_fields())


@llm.hookimpl
def register_models(register: Callable[[llm.Model], object]) -> None:
    """Register the bundled model, and the models that the user's aliases name."""
    aliases = llm.user_dir() / "aliases.json"
    targets = json.loads(aliases.read_text(encoding="utf-8")).values() if aliases.exists() else ()
    named = {target for target in targets if target.startswith(_PREFIX)}
    for model_id in sorted({f"{_PREFIX}bundled", *named}):
        register(GPT2NPModel(model_id.removeprefix(_PREFIX)))


class GPT2NPModel(llm.Model):
    """A model of gpt2np. It is loaded when the first prompt runs.

    With a chat template, the model answers messages. Without one, it continues the text of the
    conversation, and refuses a system message.
    """

    can_stream = True
    supports_schema = True

    Options = _PluginOptions  # type: ignore[assignment]

    def __init__(self, model: str) -> None:
        """Create the model that `gpt2np.load` would load; `model` is a folder or a name."""
        self.model_id = _PREFIX + model
        self._model = model

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,
        response: llm.Response,
        conversation: llm.Conversation | None,
    ) -> Iterator[str]:
        """Yield the pieces of the answer, or the whole answer if `stream` is false.

        Raises:
            llm.ModelError: the model can't be loaded, or refuses the prompt or an option.
        """
        try:
            session = self._session(prompt)
            pieces = session.retry()
            yield from pieces if stream else ["".join(pieces)]
        except GPT2NPError as error:
            raise llm.ModelError(str(error)) from error
        completion = session.completion
        assert completion
        response.set_usage(input=len(completion.prompt_ids), output=len(completion.ids))
        finish_reason, seed = completion.finish_reason, completion.seed
        response.response_json = {"finish_reason": finish_reason, "seed": seed}

    def _session(self, prompt: llm.Prompt) -> ChatSession:
        """Return a session with the messages of a prompt; the last has no answer yet."""
        from gpt2np.chat.session import ChatSession

        lm, template = self._loaded
        options = prompt.options.model_dump(exclude_none=True)
        if prompt.schema:
            options["json_schema"] = prompt.schema
        messages = [{"role": m.role, "content": _text(m)} for m in prompt.messages]
        if not messages or messages[-1]["role"] != "user":  # llm omits an empty prompt
            messages.append({"role": "user", "content": ""})
        system = messages.pop(0)["content"] if messages[0]["role"] == "system" else None
        session = ChatSession(lm, template, system=system, options=options)
        session.messages += messages
        return session

    @cached_property
    def _loaded(self) -> tuple[LanguageModel, ChatTemplate | None]:
        from gpt2np.chat import read_chat_template
        from gpt2np.language_model import LanguageModel

        lm = LanguageModel.load(self._model)
        assert lm.folder is not None
        roles = lm.tokenizer.vocabulary.special_tokens_map
        return lm, read_chat_template(lm.folder, roles)


def _text(message: Any) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))
