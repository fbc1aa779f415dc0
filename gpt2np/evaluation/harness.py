"""An adapter that runs a gpt2np model in lm-evaluation-harness (the extra `harness` installs it).

This command runs the harness's command line, `lm_eval`, with the adapter registered as "gpt2np":

    python -m gpt2np.evaluation.harness run --model gpt2np --model_args pretrained=gpt2 --tasks piqa

In a program:

    import lm_eval
    from gpt2np.evaluation.harness import HarnessModel
    lm_eval.simple_evaluate(model=HarnessModel("gpt2"), tasks=["piqa"])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, TypeVar

from tqdm import tqdm

from gpt2np.errors import InvalidArgumentError, install_hint
from gpt2np.evaluation.loglikelihood import (
    continuation_loglikelihoods,
    encode_text,
    require_bos_token_id,
    rolling_loglikelihoods,
)
from gpt2np.generation import Options
from gpt2np.language_model import LanguageModel

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ModuleNotFoundError as error:
    _import_failure = f"cannot import lm-evaluation-harness ({error}); {install_hint('harness')}"
    if __name__ == "__main__":
        raise SystemExit(f"gpt2np: error: {_import_failure}") from error
    raise ImportError(_import_failure) from error

Answer = TypeVar("Answer")

_BATCH_SIZE = 8  # texts generated at the same time
_MAX_NEW_TOKENS = 256  # the harness's default
_TOP_K = 50  # transformers' default
_MAX_NEW_TOKENS_ALIASES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@register_model("gpt2np")
class HarnessModel(LM):
    """A model for lm-evaluation-harness, with the same results as the harness's `hf` model."""

    def __init__(
        self,
        pretrained: LanguageModel | str | None = None,
        dtype: str = "float32",
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        weights: Literal["int8"] | None = None,
    ) -> None:
        """Use the LanguageModel `pretrained`, or load the model of this name like `gpt2np.load`.

        `batch_size`, `max_batch_size` and `device` are ignored; the harness's command line passes
        them to every model.
        """
        super().__init__()
        if isinstance(pretrained, LanguageModel):
            self.lm = pretrained
        else:
            self.lm = LanguageModel.load(pretrained, dtype, weights=weights)

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return each continuation's log probability, and whether greedy decoding gives it."""
        pairs = [request.args for request in requests]
        answers = continuation_loglikelihoods(self.lm, pairs)
        return self._collect("loglikelihood", requests, answers, disable_tqdm)

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log probability of each text; texts may exceed the context."""
        texts = [text for (text,) in (request.args for request in requests)]
        answers = rolling_loglikelihoods(self.lm, texts)
        return self._collect("loglikelihood_rolling", requests, answers, disable_tqdm)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate a continuation of each context, up to one of the stop strings ("until")."""
        answers = self._generate([request.args for request in requests])
        return self._collect("generate_until", requests, answers, disable_tqdm)

    def _generate(self, requests: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[str]:
        """Yield the generated texts. Request i has the seed i, whatever the batch size."""
        seed, n_positions = 0, self.lm.model.config.n_positions
        for harness_options, group in groupby(requests, key=lambda request: request[1]):
            options = convert_options(harness_options)
            max_prompt_tokens = n_positions - options["max_new_tokens"]
            if max_prompt_tokens < 1:
                raise InvalidArgumentError(
                    f"{options['max_new_tokens']} new tokens leave no room for a prompt in the "
                    f"model's context of {n_positions}; ask for fewer (max_gen_toks)"
                )
            prompts = [
                encode_text(self.lm, context) or [require_bos_token_id(self.lm)]
                for context, _ in group
            ]
            for first in range(0, len(prompts), _BATCH_SIZE):
                batch = [ids[-max_prompt_tokens:] for ids in prompts[first : first + _BATCH_SIZE]]
                options["seed"] = seed  # generate_batch adds the index in the batch
                seed += len(batch)
                for completion in self.lm.generate_batch(batch, **options):
                    yield completion.text

    def _collect(
        self, kind: str, requests: Sequence[Instance], answers: Iterable[Answer], quiet: bool
    ) -> list[Answer]:
        """List the answers, show the progress, and add each answer to the harness's cache."""
        collected = []
        bar = tqdm(answers, kind, len(requests), disable=quiet or None, leave=False)
        for request, answer in zip(requests, bar, strict=True):
            self.cache_hook.add_partial(kind, request.args, answer)
            collected.append(answer)
        return collected


def convert_options(harness_options: dict[str, Any]) -> Options:
    """Convert the harness's generation options to those of `LanguageModel.generate`.

    Defaults follow the harness's `hf` model. Decoding is greedy if "do_sample" is false, or if
    neither "do_sample" nor a positive temperature is given. "top_k" is 50 by default; None or 0
    means all tokens. Unlike in `hf`, generation_config.json is ignored, and "do_sample" without a
    positive temperature samples at temperature 1 instead of raising an error.

    Raises:
        InvalidArgumentError: an option is unknown.
    """
    rest = dict(harness_options)
    until = rest.pop("until", None) or []
    lengths = [rest.pop(name, None) for name in _MAX_NEW_TOKENS_ALIASES]
    temperature = float(rest.pop("temperature", None) or 0)
    do_sample = rest.pop("do_sample", None)
    options: Options = {
        "max_new_tokens": int(next((n for n in lengths if n is not None), _MAX_NEW_TOKENS)),
        "temperature": 0.0 if do_sample is False else temperature or float(do_sample or 0),
        "top_k": rest.pop("top_k", _TOP_K) or 0,
        "top_p": rest.pop("top_p", None) or 1.0,
        "seed": 0,
        "stop": [until] if isinstance(until, str) else [text for text in until if text],
    }
    if rest:
        raise InvalidArgumentError(
            f"unknown generation option {', '.join(rest)}; expected until, temperature, do_sample, "
            f"top_k, top_p or {_MAX_NEW_TOKENS_ALIASES[0]}"
        )
    return options


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
