"""LanguageModel: text generation and scoring by a GPT-2 with its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import DTypeLike

from gpt2np.data.files import as_path
from gpt2np.errors import (
    CheckpointError,
    InvalidArgumentError,
    check_argument,
    errors_at,
    is_integer,
    warn,
)
from gpt2np.generation.complete import complete
from gpt2np.generation.completion import Completion
from gpt2np.generation.config_file import read_generation_config
from gpt2np.generation.drafts import DraftSource
from gpt2np.generation.options import GenerationOptions, Options
from gpt2np.generation.prefix import Prefix, compute_prefix
from gpt2np.generation.request import (
    GenerateArguments,
    Prompt,
    Request,
    encode_prompt,
    encode_scored,
    prepare_call,
    resolve_options,
    scoring_prefix,
    take_callbacks,
    text_and_ids,
    warn_of_special,
    with_prompt,
)
from gpt2np.generation.sequence import start_sequences
from gpt2np.generation.streaming import TextStream
from gpt2np.hub import find_model
from gpt2np.kernels.array import as_list
from gpt2np.model import GPT2
from gpt2np.progress import progress_bar
from gpt2np.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gpt2np.generation.scoring import TextScore
    from gpt2np.runtime.context import Hook

__all__ = ["Completion", "LanguageModel", "Prompt", "TextStream"]


class LanguageModel:
    """A GPT-2 with its tokenizer.

        >>> lm = LanguageModel.load("bundled")
        >>> lm.generate("Once upon a time", max_new_tokens=50, seed=1).text

    Threads can share a language model. Calls that run at the same time return the same results as
    if they ran one after another. Change attributes or call `use_draft` only while no other thread
    uses the model.

    Attributes:
        defaults: values of the options that a call does not set.
        eos_token_ids: token ids that end a text.
        bos_token_id: the end-of-text id that replaces an empty prompt; None if the model has no
            embedding of any end-of-text id.
        folder: the folder of the model's files; None if the model was not loaded from files.
        draft_source: makes the drafters of speculative decoding; see `use_draft`.
    """

    def __init__(
        self,
        model: GPT2,
        tokenizer: Tokenizer,
        *,
        name: str = "model",
        defaults: GenerationOptions | None = None,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        check_argument(isinstance(model, GPT2), "model", model, "a GPT2")
        check_argument(isinstance(tokenizer, Tokenizer), "tokenizer", tokenizer, "a Tokenizer")
        is_options = defaults is None or isinstance(defaults, GenerationOptions)
        check_argument(is_options, "defaults", defaults, "a GenerationOptions or None")
        if tokenizer.vocabulary.text_vocab_size > model.config.vocab_size:
            raise CheckpointError(
                f"{name}: the vocabulary has {tokenizer.vocab_size} tokens, but the model only "
                f"{model.config.vocab_size}; the files must come from the same model"
            )
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.defaults = defaults or GenerationOptions()
        self.folder: Path | None = None
        self.draft_source = DraftSource(tokenizer)
        candidates = [*model.config.eos_token_ids, tokenizer.eos_token_id]
        known = [token_id for token_id in candidates if token_id is not None]
        self.eos_token_ids = eos_token_ids or frozenset(known)
        bos_candidates = [*candidates[::-1], *self.eos_token_ids]
        rows = range(model.config.vocab_size)
        self.bos_token_id = next((end for end in bos_candidates if end in rows), None)

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        dtype: DTypeLike = np.float32,
        draft: str | Path = "auto",
        processes: int | Literal["auto"] = 1,
        tokenizer: str | Path | Tokenizer | None = None,
        weights: Literal["int8"] | None = None,
        exact: bool = False,
    ) -> LanguageModel:
        """Find and load a model.

        Args:
            model: "bundled", a folder, or a name on the Hugging Face Hub; see
                `gpt2np.hub.find_model`. Default: GPT-2 small; if it is not available, the
                bundled model, with a warning.
            dtype: float32 or float64. An exact model is always float64.
            draft: "auto", "none" or an n-gram table; see `use_draft`.
            processes: number of processes that share each forward pass, or "auto"; see
                `GPT2.processes`.
            tokenizer: a vocabulary to use instead of the model's own; see `Tokenizer.load`.
            weights: "int8" quantizes the matrices to 8 bits: the matrices take a quarter of the
                memory, and the results change slightly; see `GPT2.from_folder`.
            exact: compute in float64 by operations that give the same bits on every machine, so
                that logits, texts and scores are equal everywhere; slower. See `GPT2.from_folder`.

        Raises:
            ModelNotFoundError, CheckpointError, TokenizerError: there is no such model, or it is
                damaged.
            InvalidArgumentError: the n-gram table has a different vocabulary, or `processes` is
                below 1.
        """
        source = find_model(model)
        if source.fallback_reason:
            warn(f"the model is {source.name}: {source.fallback_reason}")
        defaults, eos_token_ids = read_generation_config(source.path)
        lm = cls(
            GPT2.from_folder(source.path, dtype, weights, exact),
            tokenizer
            if isinstance(tokenizer, Tokenizer)
            else Tokenizer.load(tokenizer or source.path),
            name=source.name,
            defaults=defaults,
            eos_token_ids=eos_token_ids,
        )
        lm.folder = lm.draft_source.folder = source.path
        lm.model.processes = processes
        lm.use_draft(draft)
        return lm

    def __repr__(self) -> str:
        return f"<LanguageModel {self.name}: {self.model.summary}>"

    def use_draft(self, draft: str | Path) -> None:
        """Select the source of draft tokens, which save time and change no result.

        Args:
            draft: "none" for no draft tokens, or the path of an n-gram table. "auto" uses the
                n-gram table in the model's folder, or the package's table for GPT-2's vocabulary,
                and n-grams of the text so far. Without small-matrix kernels, "auto" means "none",
                because rounding then depends on the number of tokens in a pass.

        Raises:
            CheckpointError: the file is missing or not an n-gram table.
            InvalidArgumentError: the table has a different vocabulary.
        """
        if draft in ("auto", "none"):
            self.draft_source.draft = "auto" if draft == "auto" else None
        else:
            from gpt2np.generation.ngram_table import read_ngram_table

            table = read_ngram_table(as_path(draft))
            if not table.matches(self.tokenizer.vocabulary.token_bytes):
                raise InvalidArgumentError(
                    f"the n-gram table {draft} has another vocabulary than {self.name}; make one "
                    "with examples/make_ngram_table.py and this model"
                )
            self.draft_source.draft = table

    def generate(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        **changes: Unpack[GenerateArguments],
    ) -> Completion:
        """Continue one prompt, which is a text or a list of token ids.

        Keyword arguments are the options that `help(gpt2np.GenerationOptions)` explains; they
        override single values of `options`, or of `defaults` if `options` is None. Further keyword
        arguments are `prefix`, a `Prefix` that precedes the prompt, and the caller's functions; see
        `gpt2np.generation.request.Callbacks`.

        In a text, special tokens such as `<|endoftext|>` are plain characters, with a warning.
        `allowed_special`, a set of them or "all", encodes them as single tokens; with (), they are
        plain characters without a warning. An empty prompt becomes the end-of-text id, which starts
        a new text. Returns the first continuation; with `num_beams`, the best one. With
        `num_return_sequences`, the result's `alternatives` has the other continuations.

        Raises:
            ContextLengthError: the prompt is longer than the model's context.
            InvalidArgumentError: an option is out of its range, the options forbid every next
                token, or the prompt is neither text nor token ids.
            TypeError: an option does not exist.
            GenerationInterrupted: Ctrl-C, or the stop button of a notebook; `completions` holds
                one `Completion` with the text so far. A beam search has no text before its end.
        """
        return self.generate_batch([prompt], options, **changes)[0]

    def generate_batch(
        self,
        prompts: Iterable[Prompt],
        options: GenerationOptions | None = None,
        *,
        progress: bool | None = None,
        **changes: Unpack[GenerateArguments],
    ) -> list[Completion]:
        """Continue several prompts in batches, with the same results as `generate`.

        With n continuations per prompt, continuation j of prompt i has the seed `seed + i × n + j`;
        i and j count from 0. `generate` with this seed gives the same text. Up to sixteen
        sequences run at a time. With large models, fewer sequences run, to save memory. Beam search
        runs one prompt at a time.

        `progress` shows (True) or hides (False) a progress bar on stderr. By default, the bar
        appears for several prompts at a terminal or in Jupyter.

        Raises:
            GenerationInterrupted: Ctrl-C; `completions` holds the text of each prompt so far.
        """
        is_list = isinstance(prompts, Iterable) and not isinstance(prompts, (str, bytes, Mapping))
        check_argument(is_list, "prompts", prompts, "a list; for one prompt call generate")
        texts, requests = list(prompts), list[Request]()
        call = prepare_call(self, options, changes)
        for i, prompt in enumerate(texts):
            with errors_at(f"prompt {i + 1} of {len(texts)}: " if len(texts) > 1 else ""):
                request = with_prompt(self, call, prompt, i * call.options.num_return_sequences)
            requests.append(request)
        warn_of_special(self.tokenizer, texts, call.allowed_special)
        return complete(self.model, requests, progress)

    def stream(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        **changes: Unpack[GenerateArguments],
    ) -> TextStream:
        """Continue one prompt. Returns an iterator over the pieces of the text.

        Accepts the options of `generate`, except those for several continuations and beam search.
        """
        request = self._request_without_beams(prompt, options, changes)
        if (n := request.options.num_return_sequences) > 1:
            raise InvalidArgumentError(f"{n} continuations cannot be one stream; call generate")
        [sequence] = start_sequences(self.model, request)
        return TextStream(sequence)

    async def agenerate(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        **changes: Unpack[GenerateArguments],
    ) -> Completion:
        """Continue one prompt like `generate`, for asyncio.

        Calls that run at the same time, and streams that are read by `async for`, share their
        forward passes. A cancelled task ends its generation. For a beam search, run `generate` in
        a thread.
        """
        from gpt2np.generation.async_engine import agenerate

        request = self._request_without_beams(prompt, options, changes)
        return await agenerate(self.model, request)

    def prefix(self, text: Prompt) -> Prefix:
        """Compute the keys and values of a text that many prompts begin with.

        `generate` and the other methods take the result as `prefix`. The prompt after the prefix is
        encoded separately, so the space before a word belongs in the prompt.
        """
        return compute_prefix(self.model, *text_and_ids(self, text))

    @overload
    def score(self, text: Prompt, **arguments: Any) -> TextScore: ...

    @overload
    def score(self, text: list[str] | list[list[int]], **arguments: Any) -> list[TextScore]: ...

    def score(  # type: ignore[misc]
        self,
        text: Prompt | list[str] | list[list[int]],
        *,
        given: Prompt = "",
        context: int | None = None,
        stride: int | None = None,
        from_end_of_text: bool | None = None,
        allowed_special: Any = None,
        progress: bool | None = None,
        interventions: Hook | Sequence[Hook] | None = None,
    ) -> TextScore | list[TextScore]:
        """Compute the log probability of each token of a text, given the tokens before it.

            >>> good, bad = lm.score(["These foxes are here.", "This foxes are here."])
            >>> good.total > bad.total
            >>> lm.score(" was not there", given="The king").total
            >>> pandas.DataFrame(lm.score("The king was not there").by_word())

        A list, array or Series of texts gives a list of scores; the texts share forward passes.
        `given` is a text or a list of ids that precedes each text. `given` is encoded separately
        and not scored, so a space between `given` and `text` belongs to `text`. For
        `allowed_special`, see `generate`.

        If a text has no `given`, the end-of-text id is put before it, so that its first token is
        scored. `from_end_of_text` changes this rule: with True, the id is also put before a `given`
        text; with False, it is never added. Without a preceding token, the log probability of the
        first token is NaN. If the ids already begin with the end-of-text id, the id is not added
        again.

        If `text` has more than `context` tokens, windows start every `stride` tokens; if only
        `given` is too long, its first tokens are dropped. See
        `gpt2np.generation.scoring.strided_spans`. For `progress`, see `generate_batch`.
        `interventions` edit each pass; position 0 is the first token of the window. The window
        includes the tokens before the text.

        Raises:
            InvalidArgumentError: a token id, context or stride is out of its range, or the model
                has no end-of-text id.
        """
        from gpt2np.generation.scoring import score_texts

        is_flag = from_end_of_text is None or isinstance(from_end_of_text, bool)
        check_argument(is_flag, "from_end_of_text", from_end_of_text, "True, False or None")
        items = as_list(text)
        is_list = items is not None and not (items and is_integer(items[0]))
        texts: list[Any] = items if is_list and items is not None else [text]
        inputs = []
        for i, item in enumerate(texts, 1):
            with errors_at(f"text {i} of {len(texts)}: " if len(texts) > 1 else ""):
                inputs.append(encode_scored(self.tokenizer, item, "text", allowed_special))
        given_ids = list(encode_scored(self.tokenizer, given, "given", allowed_special))
        warn_of_special(self.tokenizer, [given, *texts], allowed_special)
        prefixes = [scoring_prefix(self, ids, given_ids, from_end_of_text) for ids in inputs]
        hook = take_callbacks({"interventions": interventions}).interventions
        with progress_bar(sum(map(np.size, inputs)), "scoring", "token", progress) as bar:
            scores = score_texts(self.model, inputs, prefixes, context, stride, bar.update, hook)
        scores = [score.with_tokens(self.tokenizer.vocabulary.token_bytes) for score in scores]
        return scores if is_list else scores[0]

    def encode_prompt(self, prompt: str, allowed_special: Any = None) -> list[int]:
        """Encode a prompt; an empty prompt becomes `bos_token_id`.

        Special tokens such as `<|endoftext|>` are plain characters, except those allowed.
        """
        return encode_prompt(self.tokenizer, prompt, self.bos_token_id, allowed_special)

    def resolve_options(
        self, options: GenerationOptions | None = None, **changes: Unpack[Options]
    ) -> GenerationOptions:
        """Complete the options of a call: `changes` override `options` (default: `defaults`).

        A missing seed is drawn at random. If `changes` has `num_beams` above 1 but no temperature,
        the temperature becomes 0. If `changes` has a temperature above 0 but no `num_beams`,
        `num_beams` becomes 1.
        """
        return resolve_options(self.defaults if options is None else options, dict(changes))

    def request(
        self,
        prompt: Prompt,
        options: GenerationOptions | None = None,
        **changes: Unpack[GenerateArguments],
    ) -> Request:
        """Resolve the arguments of `generate` into a request."""
        call = prepare_call(self, options, changes)
        warn_of_special(self.tokenizer, [prompt], call.allowed_special)
        return with_prompt(self, call, prompt)

    def _request_without_beams(
        self, prompt: Prompt, options: GenerationOptions | None, changes: GenerateArguments
    ) -> Request:
        """Return a request for which the model's default of `num_beams` does not count."""
        if options is None:
            changes = {"num_beams": 1, **changes}
        return self.request(prompt, options, **changes)


def language_model_fingerprint(lm: LanguageModel) -> str:
    """Return a digest of the contents of a model and its vocabulary."""
    return lm.model.fingerprint + lm.tokenizer.fingerprint


def model_settings(lm: LanguageModel) -> dict[str, Any]:
    """Return what a model's results depend on; rows show the name, so it counts, too."""
    return {
        "model": lm.name,
        "the model": language_model_fingerprint(lm),
        "dtype": str(lm.model.dtype),
        "exact": lm.model.exact,
        "weights": lm.model.weight_dtype,
    }
