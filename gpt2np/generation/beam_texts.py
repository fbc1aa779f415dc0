"""What beam search found, as texts."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gpt2np.generation import GenerationOptions
from gpt2np.generation.beam import Hypothesis, beam_search
from gpt2np.generation.logprobs import TokenLogprob, text_logprobs
from gpt2np.generation.streaming import Completion, TextSoFar

if TYPE_CHECKING:
    from gpt2np.constraints import Constraint
    from gpt2np.language_model import LanguageModel


def searched(
    lm: LanguageModel,
    prompt: str,
    prompt_ids: list[int],
    options: GenerationOptions,
    constraint: Constraint | None,
) -> Completion:
    """The best continuation, with `samples - 1` others; each ends where a stop is found in it."""
    started = time.perf_counter()
    found = beam_search(lm.model, prompt_ids, options, lm.eos_token_ids, constraint)
    best = [
        _until_stop(lm, hypothesis, options) for hypothesis in found[: options.num_return_sequences]
    ]
    seconds = time.perf_counter() - started
    of_prompt = _prompt_logprobs(lm, prompt_ids, options.prompt_logprobs)
    first, *others = (
        Completion(
            prompt=prompt,
            prompt_ids=list(prompt_ids),
            text=text,
            ids=hypothesis.ids,
            finish_reason=hypothesis.finish_reason,
            seed=options.seed or 0,
            model=lm.name,
            seconds=seconds,
            logprobs=_logprobs(lm, prompt_ids, hypothesis.ids, options.logprobs),
            prompt_logprobs=of_prompt,
        )
        for text, hypothesis in best
    )
    return replace(first, alternatives=tuple(others))


def _until_stop(
    lm: LanguageModel, found: Hypothesis, options: GenerationOptions
) -> tuple[str, Hypothesis]:
    """A hypothesis and its text, cut where a stop text or expression is found."""
    so_far = TextSoFar(lm.tokenizer, options, lm.eos_token_ids)
    for place, token_id in enumerate(found.ids):
        if so_far.push(token_id):
            found = replace(found, ids=found.ids[: place + 1], finish_reason="stop")
            break
    if so_far.finish():
        found = replace(found, finish_reason="stop")
    return so_far.text, found


def _logprobs(
    lm: LanguageModel, prompt_ids: list[int], ids: list[int], top: int | None
) -> list[TokenLogprob] | None:
    if top is None:
        return None
    whole = text_logprobs(lm.model, [*prompt_ids, *ids], top, lm.model.new_cache())
    return whole[len(prompt_ids) - 1 :]


def _prompt_logprobs(
    lm: LanguageModel, prompt_ids: list[int], top: int | None
) -> list[TokenLogprob | None] | None:
    if top is None:
        return None
    return [None, *text_logprobs(lm.model, prompt_ids, top, lm.model.new_cache())]
