"""A conversation with a model: each answer, and what of the computation serves the next one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpt2np.chat.conversation import Conversation, Exchange
from gpt2np.chat.template import ChatTemplate
from gpt2np.errors import InvalidArgumentError, shown

if TYPE_CHECKING:
    from gpt2np.engine import LanguageModel
    from gpt2np.model import KVCache
    from gpt2np.text_stream import TextStream


NO_OPTIONS = (
    *("samples", "best_of", "num_beams", "length_penalty", "early_stopping"),
    *("logprobs", "prompt_logprobs"),
)
"""Options of `LanguageModel.generate` that have no place in a chat: there is one answer."""


class ChatSession:
    """Answers one text after another.

        >>> session = ChatSession(lm, template)
        >>> stream = session.say("Hello!")
        >>> print("".join(stream))
        >>> session.finish(stream)

    With a template, each text is a message. Without one, the model continues all that has been said
    and answered so far as one text. The keys and values of what a prompt shares with the one before
    are kept, so that an answer needs only what is new; the results are the same as without.

    Raises:
        InvalidArgumentError: an option that has no place here or a value out of its range, or a
            system message without a template.

    Attributes:
        lm: the model.
        template: its chat template, None for a model that continues texts.
        conversation: what has been said.
        options: of `LanguageModel.generate`, for the next answers.
        seed: of the first answer; each further one has the next.
        left_out: how many exchanges, from the first on, the last prompt had no room for.
        reused: how many of the last prompt's ids needed no computation.
        files: those that the conversation has been read from or written to.
    """

    def __init__(
        self,
        lm: LanguageModel,
        template: ChatTemplate | None = None,
        *,
        system: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        if system is not None and template is None:
            raise InvalidArgumentError(f"{lm.name} has no chat template, so no system message")
        if unfit := [name for name in NO_OPTIONS if name in (options or {})]:
            raise InvalidArgumentError(f"{unfit[0]} has no place in a chat; leave it out")
        self.lm = lm
        self.template = template
        self.conversation = Conversation(system)
        self.options = dict(options or {})
        seed = self.options.pop("seed", None)
        self.seed: int = (
            int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        )
        if template is None:  # a text may go on for ever
            self.options.setdefault("window", lm.model.config.n_positions // 2)
        replace(lm.defaults, **self.options, seed=seed)  # raises for one that is out of range
        self.left_out = 0
        self.reused = 0
        self.files: set[Path] = set()
        self._known: list[int] = []  # the ids behind the cache
        self._cache: KVCache | None = None

    @property
    def known(self) -> int:
        """How many ids the keys and values are kept of."""
        return len(self._known)

    def say(self, text: str) -> TextStream:
        """Add what the user says, and answer it.

        Raises:
            InvalidArgumentError, ContextLengthError: it can't be answered, and is not added.
        """
        self.conversation.exchanges.append(Exchange(text))
        try:
            return self._answer()
        except BaseException:  # also Ctrl-C
            self.conversation.exchanges.pop()
            raise

    def retry(self) -> TextStream:
        """Answer the last text once more, with the next seed.

        Raises:
            InvalidArgumentError: nothing has been said.
        """
        if not self.conversation.exchanges:
            raise InvalidArgumentError("nothing has been said yet")
        last = self.conversation.exchanges[-1]
        before, last.answer = last.answer, None
        try:
            return self._answer()
        except BaseException:
            last.answer = before
            raise

    def _answer(self) -> TextStream:
        ids = self._prompt_ids()
        stream = self.lm.stream(ids, **self.options, seed=self.seed)
        self.seed += 1
        self._reuse(stream)
        return stream

    def _prompt_ids(self) -> list[int]:
        """The ids of the conversation, without the first exchanges if there is no room for all."""
        encode = self.lm.tokenizer.encode
        if self.template is None:
            return encode(self.conversation.joined(), disallowed_special=())
        self._check_nothing_forged()
        context = self.lm.model.config.n_positions
        wanted = self.options.get("max_new_tokens", self.lm.defaults.max_new_tokens)
        most = context - min(wanted, context // 2)
        start, last = 0, len(self.conversation.exchanges) - 1
        while True:
            text = self.conversation.templated(self.template, start)
            ids = encode(text, allowed_special="all")
            if len(ids) <= most or start == last:
                self.left_out = start
                return ids
            start += 1

    def _check_nothing_forged(self) -> None:
        """Special tokens, with which turns begin and end, must come from the template alone."""
        for message in self.conversation.messages():
            said = "" if message["role"] == "assistant" else message["content"]
            if found := next(
                (token for token in self.lm.tokenizer.special_tokens if token in said), None
            ):
                raise InvalidArgumentError(
                    f"the {message['role']} message {shown(said)} holds {found}, which only the "
                    "chat template may write; spell it otherwise"
                )

    def _reuse(self, stream: TextStream) -> None:
        """Give a stream the keys and values of what its prompt shares with what is known."""
        prompt, self.reused = stream.sequence.prompt, 0
        known, cache = self._known, self._cache
        self._known, self._cache = [], None  # until `finish`
        if cache is None or len(prompt) > self.lm.model.config.n_positions:
            return
        most = min(len(known), len(prompt) - 1)
        different = (number for number in range(most) if known[number] != prompt[number])
        self.reused = next(different, most)
        cache.truncate(self.reused)
        stream.sequence.cache = cache

    def finish(self, stream: TextStream) -> None:
        """Note an answer that `say` or `retry` has begun and that has ended, in whatever way."""
        sequence = stream.sequence
        self.conversation.exchanges[-1].answer = stream.completion.text
        if not sequence.start:
            self._cache = sequence.cache
            self._known = [*sequence.prompt, *sequence.ids][: sequence.cache.length]
