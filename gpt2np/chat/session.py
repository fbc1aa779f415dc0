"""Conversations, and chat sessions that keep the KV cache from one answer to the next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2np.chat.template import ChatTemplate, check_message, check_special_tokens
from gpt2np.data.files import as_path, atomic_write_text, read_json_object
from gpt2np.errors import InvalidArgumentError, check_argument, error_reason
from gpt2np.generation.options import ONE_TEXT_ONLY, GenerationOptions
from gpt2np.generation.sampling import new_seed
from gpt2np.kernels.array import common_length
from gpt2np.limits import limits
from gpt2np.options import options_of

if TYPE_CHECKING:
    from gpt2np.generation.streaming import TextStream
    from gpt2np.language_model import LanguageModel
    from gpt2np.model import KVCache


UNSUPPORTED_OPTIONS = [
    name for name, o in options_of(GenerationOptions).items() if o.group in ONE_TEXT_ONLY
]
"""Options of `LanguageModel.generate` that a chat does not support."""


@dataclass
class Exchange:
    """A user's message and the model's answer, which is None until the model has answered."""

    message: str
    answer: str | None = None


@dataclass
class Conversation:
    """A system message or None, and pairs of message and answer; the last may lack its answer."""

    system: str | None = None
    exchanges: list[Exchange] = field(default_factory=list)

    def messages(self, start: int = 0) -> list[dict[str, str]]:
        """Return the system message and all messages from exchange `start` on.

        Each message has a role and a content, as in chat templates and in OpenAI's API.
        """
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for exchange in self.exchanges[start:]:
            messages.append({"role": "user", "content": exchange.message})
            if exchange.answer is not None:
                messages.append({"role": "assistant", "content": exchange.answer})
        return messages

    def joined_text(self) -> str:
        """Join all messages and answers into one text, the prompt for a base model.

        Adds a space before a user message unless white space is there already.
        """
        text = self.system or ""
        for exchange in self.exchanges:
            message = exchange.message
            adjoins = text and message and not text[-1].isspace() and not message[0].isspace()
            text += (" " if adjoins else "") + message + (exchange.answer or "")
        return text

    def save(self, path: str | Path) -> int:
        """Write the messages to a JSON file; returns the number of messages.

        Raises InvalidArgumentError if the file can't be written.
        """
        messages = self.messages()
        content = json.dumps({"messages": messages}, ensure_ascii=False, indent=1)
        try:
            atomic_write_text(Path(path), content + "\n")
        except (OSError, ValueError) as error:
            reason = error_reason(error)
            raise InvalidArgumentError(f"cannot write {path}: {reason}") from error
        return len(messages)


def read_conversation(path: str | Path) -> Conversation:
    """Read a conversation from a file that `Conversation.save` has written.

    Raises InvalidArgumentError if the file can't be read, or does not hold a conversation.
    """
    most = limits().max_vocabulary_bytes
    saved = read_json_object(as_path(path), InvalidArgumentError, max_bytes=most)
    messages = saved.get("messages")
    if not isinstance(messages, list):
        raise InvalidArgumentError(f'{path} is not a conversation: expected a list "messages"')
    return conversation_from_messages(messages, f"{path}: ")


def conversation_from_messages(messages: Sequence[object], origin: str = "") -> Conversation:
    """Convert messages, each a dict with role and content, to a conversation.

    The messages are an optional system message, then user and assistant in turn; otherwise, the
    function raises InvalidArgumentError, whose text begins with `origin`.
    """
    conversation = Conversation()
    for number, message in enumerate(messages, 1):
        checked = check_message(message, f"{origin}message {number}")
        role, content = checked["role"], checked["content"]
        last = conversation.exchanges[-1] if conversation.exchanges else None
        if role == "system" and number == 1:
            conversation.system = content
        elif role == "user" and (last is None or last.answer is not None):
            conversation.exchanges.append(Exchange(content))
        elif role == "assistant" and last is not None and last.answer is None:
            last.answer = content
        else:
            raise InvalidArgumentError(
                f"{origin}message {number} has the role {role!r} out of order; expected an "
                "optional system message, then user and assistant in turn"
            )
    return conversation


class ChatSession:
    """A conversation with a model.

        >>> session = ChatSession(lm, template)
        >>> stream = session.say("Hello!")
        >>> print("".join(stream))
        >>> session.finish(stream)

    With a template, the model answers messages. Without a template, the model continues all
    messages and answers as one text. The session keeps the KV cache of the last prompt and answer,
    and reuses the prefix that the next prompt shares. Reuse does not change the answers.

    Attributes:
        lm: the language model.
        template: the chat template, None for a base model.
        conversation: messages and answers so far.
        options: keyword arguments of `LanguageModel.generate` for the next answers.
        seed: the seed of the next answer; every answer increases the seed by 1.
        left_out: number of oldest exchanges that the last prompt omits to fit the context.
        cut_at: the special token before which the last answer was cut, or None.
        n_reused: number of tokens of the last prompt that came from the KV cache.
        files: conversation files saved or loaded in this session; /save may overwrite them.
    """

    def __init__(
        self,
        lm: LanguageModel,
        template: ChatTemplate | None = None,
        *,
        system: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """Create a session with an empty conversation.

        Raises InvalidArgumentError if an option is unsupported or out of range, `template` has
        another type, or `system` is given without a template.
        """
        is_template = template is None or isinstance(template, ChatTemplate)
        check_argument(is_template, "template", template, "from read_chat_template, or None")
        if system is not None and template is None:
            raise InvalidArgumentError(
                f"{lm.name} has no chat template; a system message needs one"
            )
        if unsupported := [name for name in UNSUPPORTED_OPTIONS if name in (options or {})]:
            raise InvalidArgumentError(f"a chat does not support {unsupported[0]}; leave it out")
        self.lm = lm
        self.template = template
        self.conversation = Conversation(system)
        self.options = dict(options or {})
        seed = self.options.pop("seed", None)
        self.seed: int = new_seed() if seed is None else seed
        # These override the model's defaults.
        self._defaults: Any = {"num_beams": 1, "num_return_sequences": 1, "best_of": None}
        if template is None:  # the text of a base model may grow without limit
            self._defaults["window"] = lm.model.config.n_positions // 2
        self.resolve_options({**self.options, "seed": seed})
        self.left_out = 0
        self.cut_at: str | None = None
        self.n_reused = 0
        self.files: set[Path] = set()
        self._cached_ids: list[int] = []
        self._cache: KVCache | None = None
        # The stream and its exchange, until `finish`.
        self._pending: tuple[TextStream | None, Exchange | None] = None, None

    @property
    def n_cached(self) -> int:
        """Number of tokens in the KV cache that the session keeps."""
        return len(self._cached_ids)

    def resolve_options(self, options: dict[str, Any]) -> GenerationOptions:
        """Fill in missing `options` with the defaults of the session and of the model."""
        return self.lm.resolve_options(**{**self._defaults, **options})

    def say(self, text: str) -> TextStream:
        """Add a message and return the stream that generates the answer.

        Raises:
            InvalidArgumentError, ContextLengthError: the message is invalid or too long, or the
                last message has no answer yet. The conversation stays unchanged.
        """
        check_argument(isinstance(text, str), "text", text, "a text")
        exchanges = self.conversation.exchanges
        if exchanges and exchanges[-1].answer is None:
            raise InvalidArgumentError(
                "the last message has no answer yet: retry, or finish its stream"
            )
        self.conversation.exchanges.append(Exchange(text))
        try:
            return self.retry()
        except BaseException:  # also KeyboardInterrupt
            self.conversation.exchanges.pop()
            raise

    def retry(self) -> TextStream:
        """Return a stream that generates another answer to the last message, with the next seed.

        Raises InvalidArgumentError if the conversation is empty.
        """
        if not self.conversation.exchanges:
            raise InvalidArgumentError("the conversation is empty")
        last = self.conversation.exchanges[-1]
        previous, last.answer = last.answer, None
        try:
            options: Any = {**self._defaults, **self.options, "seed": self.seed}
            if self.template:  # a special token's text could forge the end of a turn
                stop = self.resolve_options(self.options).stop
                options["stop"] = [*stop, *self.lm.tokenizer.special_tokens]
            stream = self.lm.stream(self._prompt_ids(), **options)
            self._reuse_cache(stream)
        except BaseException:
            last.answer = previous
            raise
        self.seed += 1
        self._pending = stream, last
        return stream

    def _prompt_ids(self) -> list[int]:
        """Encode the conversation, dropping the oldest exchanges if needed to fit the context."""
        encode = self.lm.tokenizer.encode
        if self.template is None:
            return encode(self.conversation.joined_text(), disallowed_special=())
        self.check_messages(self.conversation)
        context = self.lm.model.config.n_positions
        max_new = self.options.get("max_new_tokens", self.lm.defaults.max_new_tokens)
        max_length = context - min(max_new, context // 2)
        for start in range(len(self.conversation.exchanges)):
            text = self.template.render(self.conversation.messages(start))
            ids = encode(text, allowed_special="all")
            self.left_out = start
            if len(ids) <= max_length:
                break
        return ids

    def check_messages(self, conversation: Conversation) -> None:
        """If there is a template, raise InvalidArgumentError for a special token in a message."""
        if self.template:
            check_special_tokens(conversation.messages(), self.lm.tokenizer.special_tokens)

    def _reuse_cache(self, stream: TextStream) -> None:
        """Give a stream the session's KV cache, cut to the common prefix of cache and prompt."""
        prompt, self.n_reused = stream.sequence.request.ids, 0
        cached_ids, cache = self._cached_ids, self._cache
        self._cached_ids, self._cache = [], None  # `finish` sets both again
        if cache is None or len(prompt) > self.lm.model.config.n_positions:
            return
        self.n_reused = common_length(cached_ids, prompt[:-1])
        cache.truncate(self.n_reused)
        stream.sequence.cache = cache

    def finish(self, stream: TextStream) -> None:
        """Add the answer of a stream to the conversation, after the stream has ended.

        The stream comes from `say` or `retry`. With a template, the stream ends the answer before
        the text of any special token.

        Raises InvalidArgumentError if the stream still runs, is finished already, or does not
        belong to the last message.
        """
        if stream.running:
            raise InvalidArgumentError("the answer is not complete: read its stream, or cancel it")
        exchanges, (pending, exchange) = self.conversation.exchanges, self._pending
        if stream is not pending or not exchanges or exchanges[-1] is not exchange:
            raise InvalidArgumentError(
                "this stream is finished already, or does not belong to the last message"
            )
        self._pending = None, None
        sequence, completion = stream.sequence, stream.completion
        special_tokens = self.lm.tokenizer.special_tokens if self.template else ()
        self.cut_at = next((t for t in special_tokens if t == completion.stop_reason), None)
        exchanges[-1].answer = completion.text
        if not sequence.context_start:
            # The cache may hold keys of rejected draft tokens.
            n_valid = min(sequence.cache.length, sequence.length - 1)
            self._cache = sequence.cache
            self._cached_ids = [*sequence.request.ids, *sequence.ids][:n_valid]
