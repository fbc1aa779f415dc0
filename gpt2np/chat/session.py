"""Chat sessions: messages as in OpenAI's API, and a KV cache that is kept between answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpt2np.chat.template import ChatTemplate
from gpt2np.errors import InvalidArgumentError, check_argument, warn
from gpt2np.generation.completion import Completion
from gpt2np.generation.options import ONE_TEXT_ONLY, GenerationOptions
from gpt2np.generation.streaming import TextStream
from gpt2np.kernels.array import common_length
from gpt2np.language_model import LanguageModel
from gpt2np.model import KVCache
from gpt2np.options import options_of

Message = dict[str, str]
"""A message: a role, such as "user", and a content."""

UNSUPPORTED_OPTIONS = [
    name for name, o in options_of(GenerationOptions).items() if o.group in ONE_TEXT_ONLY
]
"""Options of `LanguageModel.generate` that a chat does not support."""


class ChatSession:
    """A conversation with a model.

        >>> session = ChatSession(lm, template)
        >>> print("".join(session.say("Hello!")))

    With a template, the model answers messages. Without a template, the model continues all
    messages and answers as one text. The session keeps the KV cache of the last prompt and answer,
    and reuses the prefix that the next prompt shares. Reuse does not change the answers.

    Attributes:
        lm: the language model.
        template: the chat template, None for a base model.
        messages: the conversation: an optional system message, then user and assistant messages.
        options: values of `GenerationOptions`, by name.
        seed: the seed of the next answer.
        completion: the last answer, with its finish reason; None before the first answer.
        left_out: number of user messages that did not fit into the context for the last prompt.
        n_reused: number of tokens of the last prompt whose keys and values were reused.
    """

    def __init__(
        self,
        lm: LanguageModel,
        template: ChatTemplate | None = None,
        *,
        system: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Create a session without user messages.

        Raises InvalidArgumentError if an option is unsupported or out of range, `template` has
        another type, or `system` is given without a template.
        """
        is_template = template is None or isinstance(template, ChatTemplate)
        check_argument(is_template, "template", template, "from read_chat_template, or None")
        if unsupported := [name for name in UNSUPPORTED_OPTIONS if name in (options or {})]:
            raise InvalidArgumentError(f"a chat does not support {unsupported[0]}; leave it out")
        if system is not None and template is None:
            raise InvalidArgumentError(
                f"{lm.name} has no chat template; a system message needs one"
            )
        self.lm = lm
        self.template = template
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        # These override the model's defaults.
        self._defaults: Any = {"num_beams": 1, "num_return_sequences": 1}
        self.options = dict(options or {})
        self.seed: int = self.resolve_options(self.options).seed or 0
        self.options.pop("seed", None)
        self.completion: Completion | None = None
        self.left_out = self.n_reused = 0
        self._cached_ids: list[int] = []
        self._cache: KVCache | None = None

    def resolve_options(self, options: dict[str, Any]) -> GenerationOptions:
        """Fill in missing `options` with the defaults of the session and of the model."""
        return self.lm.resolve_options(**{**self._defaults, **options})

    def say(self, text: str) -> Iterator[str]:
        """Add a user message; return an iterator over the pieces of the answer.

        The answer becomes a message when the iterator ends or is closed.

        Raises:
            InvalidArgumentError, ContextLengthError: the message is invalid or too long, or the
                last message has no answer yet. The conversation stays unchanged.
        """
        check_argument(isinstance(text, str), "text", text, "a text")
        if self.messages and self.messages[-1]["role"] == "user":
            raise InvalidArgumentError("the last message has no answer yet; read it, or retry")
        messages = [*self.messages, {"role": "user", "content": text}]
        return self._answer(messages)

    def retry(self) -> Iterator[str]:
        """Answer the last user message again, with the next seed; see `say`.

        Raises InvalidArgumentError if there is no user message.
        """
        is_answered = bool(self.messages) and self.messages[-1]["role"] == "assistant"
        messages = self.messages[:-1] if is_answered else list(self.messages)
        if not messages or messages[-1]["role"] != "user":
            raise InvalidArgumentError("the conversation is empty")
        return self._answer(messages)

    def _answer(self, messages: list[Message]) -> Iterator[str]:
        options: Any = {**self._defaults, **self.options, "seed": self.seed}
        if self.template:  # a special token's text could forge the end of a turn
            stop = self.resolve_options(self.options).stop
            options["stop"] = [*stop, *self.lm.tokenizer.special_tokens]
        stream = self.lm.stream(self._prompt_ids(messages), **options)
        self._reuse_cache(stream)
        self.messages = messages
        self.seed += 1
        return self._pieces(stream, messages)

    def _pieces(self, stream: TextStream, messages: list[Message]) -> Iterator[str]:
        try:
            yield from stream
        finally:
            stream.cancel()
            sequence, self.completion = stream.sequence, stream.completion
            messages.append({"role": "assistant", "content": self.completion.text})
            # The cache may hold keys of rejected draft tokens.
            n_valid = min(sequence.cache.length, sequence.length - 1)
            self._cache = sequence.cache
            self._cached_ids = [*sequence.request.ids, *sequence.ids][:n_valid]

    def _prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Encode the conversation, without its first user messages if they do not fit.

        Of a base model's text that does not fit, the end remains, half a context.
        """
        encode = self.lm.tokenizer.encode
        context = self.lm.model.config.n_positions
        max_new = self.options.get("max_new_tokens", self.lm.defaults.max_new_tokens)
        max_length = context - min(max_new, context // 2)
        if self.template is None:
            ids = encode(joined_text(messages), disallowed_special=())
            if len(ids) <= max_length:
                return ids
            warn("the text is too long; the model reads only its end")
            return ids[-(context // 2) :]
        starts = [i for i, message in enumerate(messages) if message["role"] == "user"]
        system = [message for message in messages[:1] if message["role"] == "system"]
        for self.left_out, start in enumerate(starts):
            kept = [*system, *messages[start:]] if self.left_out else messages
            ids = self.template.encode(kept, self.lm.tokenizer)
            if len(ids) <= max_length:
                break
        return ids

    def _reuse_cache(self, stream: TextStream) -> None:
        """Give a stream the session's KV cache, cut to the common prefix of cache and prompt."""
        prompt, self.n_reused = stream.sequence.request.ids, 0
        cached_ids, cache = self._cached_ids, self._cache
        self._cached_ids, self._cache = [], None  # the end of the answer sets both again
        if cache is None:
            return
        self.n_reused = common_length(cached_ids, prompt[:-1])
        cache.truncate(self.n_reused)
        stream.sequence.cache = cache


def joined_text(messages: Sequence[Mapping[str, str]]) -> str:
    """Join all messages into one text, the prompt for a base model.

    Adds a space before a user message unless white space is there already.
    """
    text = ""
    for message in messages:
        content = message["content"]
        adjoins = text and content and not text[-1].isspace() and not content[0].isspace()
        text += (" " if adjoins and message["role"] == "user" else "") + content
    return text
