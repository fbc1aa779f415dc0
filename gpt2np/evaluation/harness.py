"""A gpt2np model for lm-evaluation-harness (the extra `harness`), all of its tasks included.

    python -m gpt2np.evaluation.harness run --model gpt2np --model_args pretrained=gpt2 --tasks piqa

is the harness's own command line, `lm_eval`, with this model in it. In a program:

    import lm_eval
    from gpt2np.evaluation.harness import HarnessModel
    lm_eval.simple_evaluate(model=HarnessModel("gpt2"), tasks=["piqa"])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

from tqdm import tqdm

from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.requests import (
    continuation_likelihoods,
    encode,
    end_of_text,
    rolling_likelihoods,
)
from gpt2np.generation import Options
from gpt2np.language_model import LanguageModel

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ModuleNotFoundError as error:
    _missing = f"lm-evaluation-harness can't be imported ({error}): pip install 'gpt2np[harness]'"
    if __name__ == "__main__":
        raise SystemExit(f"gpt2np: error: {_missing}") from error
    raise ImportError(_missing) from error

Answer = TypeVar("Answer")

_TOGETHER = 8  # texts that are generated at the same time
_MAX_NEW_TOKENS = 256  # the harness's own default
_TOP_K = 50  # transformers' default
_NAMES_OF_MAX_NEW_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@register_model("gpt2np")
class HarnessModel(LM):
    """The harness's interface to a model: the answers of its own `hf` model, by NumPy.

    Attributes:
        lm: the model that answers.
    """

    def __init__(
        self,
        pretrained: LanguageModel | str | None = None,
        dtype: str = "float32",
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
    ) -> None:
        """Load a model as `gpt2np.load` does, or take one.

        batch_size, max_batch_size and device are what the harness's command line hands to every
        model; nothing here depends on them.
        """
        super().__init__()
        self.lm = _model(pretrained, dtype)

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """For each (context, continuation): the latter's log probability, is it the greedy one?"""
        pairs = [request.args for request in requests]
        answers = continuation_likelihoods(self.lm, pairs)
        return self._collected("loglikelihood", requests, answers, disable_tqdm)

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """For each (text,) its log probability, whatever its length."""
        answers = rolling_likelihoods(self.lm, [text for (text,) in (r.args for r in requests)])
        return self._collected("loglikelihood_rolling", requests, answers, disable_tqdm)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """For each (context, options) what follows, up to the first of the texts in "until"."""
        answers = self._continuations([request.args for request in requests])
        return self._collected("generate_until", requests, answers, disable_tqdm)

    def _continuations(self, asked: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[str]:
        """The texts; the request at i draws by the seed i, whatever is asked for beside it."""
        seed = 0
        for wanted, group in groupby(asked, key=lambda pair: pair[1]):
            options = options_of(wanted)
            room = self.lm.model.config.n_positions - options["max_new_tokens"]
            if room < 1:
                raise InvalidArgumentError(
                    f"{options['max_new_tokens']} new tokens leave no room for a prompt in the "
                    f"model's context of {self.lm.model.config.n_positions}; ask for fewer "
                    "(max_gen_toks)"
                )
            contexts = [context for context, _ in group]
            prompts = [encode(self.lm, text) or [end_of_text(self.lm)] for text in contexts]
            for first in range(0, len(prompts), _TOGETHER):
                some = [ids[-room:] for ids in prompts[first : first + _TOGETHER]]
                options["seed"] = seed  # from which generate_batch counts on
                seed += len(some)
                yield from (done.text for done in self.lm.generate_batch(some, **options))

    def _collected(
        self, kind: str, requests: Sequence[Instance], answers: Iterable[Answer], quiet: bool
    ) -> list[Answer]:
        """The answers, with a bar while they come; each goes to the harness's cache, too."""
        collected = []
        bar = tqdm(answers, kind, len(requests), disable=quiet or None, leave=False)
        for request, answer in zip(requests, bar, strict=True):
            self.cache_hook.add_partial(kind, request.args, answer)
            collected.append(answer)
        return collected


def _model(pretrained: LanguageModel | str | None, dtype: str) -> LanguageModel:
    if isinstance(pretrained, LanguageModel):
        return pretrained
    return LanguageModel.load(pretrained, dtype)


def options_of(wanted: dict[str, Any]) -> Options:
    """The harness's options for a generation as those of `LanguageModel.generate`.

    As in the harness's `hf` model: greedy unless "do_sample" or a temperature says otherwise;
    sampling is from the 50 likeliest, transformers' default, unless "top_k" says otherwise (None
    or 0: from all). Unlike it, this heeds no generation_config.json, and "do_sample" alone, which
    transformers refuses, is temperature 1.

    Raises:
        InvalidArgumentError: names an option that there is not.
    """
    left = dict(wanted)
    until = left.pop("until", None) or []
    lengths = [left.pop(name, None) for name in _NAMES_OF_MAX_NEW_TOKENS]
    temperature = float(left.pop("temperature", None) or 0)
    do_sample = left.pop("do_sample", None)
    options: Options = {
        "max_new_tokens": int(next((n for n in lengths if n is not None), _MAX_NEW_TOKENS)),
        "temperature": 0.0 if do_sample is False else temperature or float(do_sample or 0),
        "top_k": left.pop("top_k", _TOP_K) or 0,
        "top_p": left.pop("top_p", None) or 1.0,
        "seed": 0,
        "stop": [until] if isinstance(until, str) else [text for text in until if text],
    }
    if left:
        raise InvalidArgumentError(f"there is no option {', '.join(left)} for a generation")
    return options


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
