"""Generation options: everything that a caller may choose about a completion."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from gpt2np.generation.validation import normalize_options

EarlyStopping = bool | Literal["never"]


class Options(TypedDict, total=False):
    """The keyword arguments of `LanguageModel.generate`; see `GenerationOptions`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    seed: int | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    logit_bias: Mapping[int, float]
    bad_words: Sequence[str]
    bad_words_ids: Sequence[Sequence[int]]
    max_new_tokens: int
    min_new_tokens: int
    ignore_eos: bool
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    stop_regex: str | Sequence[str]
    window: int
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    prompt_lookup: bool
    choices: Sequence[str]
    regex: str | None
    num_return_sequences: int
    best_of: int | None
    logprobs: int | None
    prompt_logprobs: int | None


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How to continue a prompt.

    Attributes:
      Sampling:
        temperature: divides the logits; 0 selects the most likely token (greedy).
        top_k: sample from the k most likely tokens; 0 for all.
        top_p: sample from the fewest most likely tokens with this total probability, 0 < p ≤ 1.
        min_p: sample from the tokens at least min_p times as likely as the most likely, 0 … 1.
        typical_p: sample from the fewest tokens of typical surprisal with this total probability,
            0 < p ≤ 1 (Meister et al. 2022).
        seed: seed of the random numbers; None for an unpredictable one.

      Penalties:
        repetition_penalty: divides the positive logits, and multiplies the negative logits, of
            tokens in the prompt or the continuation (Keskar et al. 2019), 0.001 … 1000.
        presence_penalty: subtracted from the logits of generated tokens, -2 … 2.
        frequency_penalty: subtracted from the logits of generated tokens once per occurrence,
            -2 … 2. Presence and frequency penalty are those of OpenAI's API.
        no_repeat_ngram_size: forbid repeated n-grams of this size, prompt included; 0 allows them.
        logit_bias: added to the logits of some ids, as in {50256: -5.0}; -10,000 … 10,000. Ids may
            be strings, like the keys of a JSON object.
        bad_words: texts that are never generated, with or without a space before them.
        bad_words_ids: sequences of ids that are never generated.

      Stopping:
        max_new_tokens: maximum number of new tokens, at least 1.
        min_new_tokens: forbid the end-of-text token before this many new tokens.
        ignore_eos: never generate the end-of-text token.
        stop: one or more texts that end the generation; the result ends before them.
        stop_token_ids: ids that end the generation; the result's text ends before them.
        stop_regex: one or more regular expressions whose match ends the generation; the result ends
            before the match. If the next character may undo the match, as with `cat\\b` or
            `foo(?!bar)`, the match counts once that character has come.
        window: when the context is full, continue from the last `window` tokens; 0 ends there.

      Search:
        num_beams: number of beams, at most 64; 1 for no beam search.
        length_penalty: a beam's score is its log probability divided by its length to this power.
        early_stopping: when beam search ends: once `num_beams` hypotheses are done (True), once no
            running beam scores higher at its present length (False), or once none can ("never").
        prompt_lookup: draft tokens from earlier n-grams of the text; the result is the same.

      Constraints:
        choices: the continuation is one of these texts.
        regex: the continuation matches this regular expression as a whole; a leading `^` and a
            trailing `$` are allowed. See `gpt2np.constraints.syntax`.

      Output:
        num_return_sequences: number of continuations, at most 1000; number j, from 0, is the one
            that `seed + j` gives alone.
        best_of: sample this many, at most 1000, and return the `num_return_sequences` with the
            highest mean log probability.
        logprobs: return the log probability of each token and of this many most likely tokens at
            its position, 0 … 1000.
        prompt_logprobs: return the same for the prompt's tokens.

    Log probabilities are the model's own, before penalties, filters and temperature.

    Raises:
        InvalidArgumentError: a value is out of its range, or two values contradict each other.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()

    max_new_tokens: int = 200
    min_new_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    window: int = 0

    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    prompt_lookup: bool = False

    choices: tuple[str, ...] = ()
    regex: str | None = None

    num_return_sequences: int = 1
    best_of: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, value in normalize_options(vars(self)).items():
            object.__setattr__(self, name, value)

    @property
    def n_drawn(self) -> int:
        """Number of continuations that are generated for each prompt."""
        return self.best_of or self.num_return_sequences
