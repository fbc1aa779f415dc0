"""Requests of OpenAI's protocol, with vLLM's additional fields, and the options that they mean.

A field that asks for something that gpt2np lacks is an error, and null means the default.
The module `fields` lists fields that are refused or ignored; a header of the response names all
others.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)

from gpt2np.errors import InvalidArgumentError
from gpt2np.generation.callbacks import GenerateArguments, LogitsProcessor
from gpt2np.generation.options import TEXT_CONSTRAINTS, GenerationOptions
from gpt2np.kernels.array import Array
from gpt2np.option_types import MAX_ENTRIES, AnyText, List, Text, TokenId, Whole, option_type
from gpt2np.options import help_text, options_of
from gpt2np.server.fields import IGNORED, REFUSED, is_meant

MAX_STEERED_SEQUENCES = 8  # of a server; each runs in a pass of its own


def _check_n_prompts(value: object) -> object:
    """Raise ValueError for a list that is too long, before pydantic copies it for each error."""
    if isinstance(value, list) and len(value) > MAX_ENTRIES:
        raise ValueError(f"a list of {len(value):,} entries, more than {MAX_ENTRIES:,}")
    return value


class UnsupportedFieldError(InvalidArgumentError):
    """A field of a request asks for something that gpt2np lacks; `param` is the field."""


class _Request(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _ClosedRequest(_Request):
    """Unknown fields are errors: ignoring a misspelled field would change the result."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, fields: Any) -> Any:
        """Drop null fields, also unknown ones: null counts as absent."""
        is_object = isinstance(fields, dict)
        return {k: v for k, v in fields.items() if v is not None} if is_object else fields


class StreamOptions(_Request):
    """What a stream contains besides the text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class StructuredOutputs(_ClosedRequest):
    """A constraint on the whole continuation: a pattern, a list of texts, or a JSON Schema."""

    regex: Text | None = None
    choice: List[Text] | None = Field(None, min_length=1)
    json_schema: dict[str, Any] | AnyText | None = Field(None, alias="json")
    grammar: Any = None
    json_object: bool | None = None
    structural_tag: Any = None


class ResponseFormat(_ClosedRequest):
    """The form of the text: any text, a JSON object, or JSON that is valid for a schema."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"] = "text"
    json_schema: dict[str, Any] | None = None


_OF_ENDPOINTS = ("max_new_tokens", "logprobs")  # each endpoint has other fields for these
_OPTIONS = options_of(GenerationOptions)
JSON_NAMES = {name: option.json_name or name for name, option in _OPTIONS.items()}
JSON_NAMES["window"] = "truncate_prompt_tokens"  # which keeps the last tokens, too
_MAX_BEAMS = _OPTIONS["num_beams"].high or 1
_FIELDS = {
    name: field
    for name, field in JSON_NAMES.items()
    if name not in (*_OF_ENDPOINTS, "num_beams", "window", *TEXT_CONSTRAINTS)
    and field not in {*REFUSED, *IGNORED}
}
"""Option → the field of a request that has the same values."""


_OTHER_TYPES = {
    "top_k": Annotated[int, Field(ge=-1), Whole],
    "top_p": Annotated[float, Field(ge=0, le=1)],  # 0 means the most likely token
    "seed": Annotated[int, Field(ge=-1 << 63, lt=1 << 63), Whole],
    "stop": AnyText | List[Text],  # "" means none
}


_ADDED_MEANINGS = {
    "top_k": ", like -1",  # vLLM's -1 means the same as 0
    "best_of": ". With use_beam_search, the number of beams",
}


def describe(name: str) -> str:
    """Return the description of the field for an option."""
    text = _OPTIONS[name].help + _ADDED_MEANINGS.get(name, "")
    return help_text(GenerationOptions, text, JSON_NAMES)


def _option_fields(names: Iterable[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return pydantic's fields for options; a field without a default may be null."""
    fields = {}
    for name in names:
        annotation = _OTHER_TYPES.get(name) or option_type(_OPTIONS[name])
        default = defaults.get(name)
        annotation = annotation | None if default is None else annotation
        fields[_FIELDS[name]] = annotation, Field(default, description=describe(name))
    return fields


_GenerationFields = create_model(
    "_GenerationFields", __base__=_Request, **_option_fields(_FIELDS, {})
)
_SAMPLING = {
    name: 1.0 if name == "temperature" else option.default
    for name, option in _OPTIONS.items()
    if option.group == "Sampling" and name != "seed"
} | {"top_k": 0}
_SamplingFields = create_model(
    "_SamplingFields", __base__=_ClosedRequest, **_option_fields(_SAMPLING, _SAMPLING)
)


class EditRequest(_ClosedRequest):
    """Multiply an activation by `factor`, or add `strength` times `vector` to it."""

    point: str = Field(
        pattern=r"^(embed|blocks\.)", max_length=100, description="`embed`, or a point of a block."
    )
    heads: List[Annotated[int, Field(ge=0)]] | None = Field(None, min_length=1, max_length=1000)
    factor: float = Field(0, ge=-1000, le=1000)
    vector: List[Annotated[float, Field(ge=-1e6, le=1e6)]] | None = Field(
        None,
        min_length=1,
        max_length=100_000,
        description="Values to add, one per channel, instead of the multiplication.",
    )
    strength: float = Field(1, ge=-1000, le=1000, description="Multiplies `vector`.")

    @model_validator(mode="after")
    def _check_meaning(self) -> EditRequest:
        """Raise ValueError for a strength without a vector, or a factor together with a vector."""
        unused = "strength" if self.vector is None else "factor"
        if unused in self.model_fields_set:
            has = "has no effect without" if self.vector is None else "cannot be combined with"
            raise ValueError(f"{unused} {has} vector")
        return self

    @property
    def changes_nothing(self) -> bool:
        """Whether the pass is the same without the edit."""
        return self.factor == 1 if self.vector is None else self.strength == 0


Edits = Annotated[list[EditRequest], Field(fail_fast=True, max_length=20)]


class GenerationRequest(_GenerationFields):  # type: ignore[misc, valid-type]
    """The fields that completions and chat completions have in common."""

    model_config = ConfigDict(extra="allow")

    model: AnyText | None = None
    allowed_token_ids: List[TokenId] | None = Field(None, min_length=1)
    structured_outputs: StructuredOutputs | None = None
    response_format: ResponseFormat | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1), Whole] | None = None
    use_beam_search: bool | None = False
    skip_special_tokens: bool | None = True
    include_stop_str_in_output: bool | None = False
    return_token_ids: bool | None = False
    return_tokens_as_token_ids: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    interventions: Edits | None = Field(
        None, description="Edits of activations in each pass, as in steering."
    )

    @property
    def unknown_fields(self) -> list[str]:
        """The names of fields that have no meaning here, as far as a header may hold them."""
        unknown = [name for name in self.model_extra or () if name not in {*REFUSED, *IGNORED}]
        return _header_names(unknown)

    def unsupported(self) -> str | None:
        """Return the name of an unsupported field, perhaps with its value, or None."""
        outputs, form = self.structured_outputs, self.response_format
        missing = {
            "structured_outputs.grammar": outputs and outputs.grammar is not None,
            "structured_outputs.structural_tag": outputs and outputs.structural_tag is not None,
            "response_format structural_tag": form and form.type == "structural_tag",
            "use_beam_search with stream": self.use_beam_search and self.stream,
            "use_beam_search with temperature": (
                self.use_beam_search
                and "temperature" in self.model_fields_set
                and bool(self.temperature)
            ),
            "use_beam_search with interventions": (
                self.use_beam_search
                and any(not edit.changes_nothing for edit in self.interventions or ())
            ),
            "best_of above n with stream": self.stream and (self.best_of or 1) > (self.n or 1),
            "prompt_logprobs with stream": self.prompt_logprobs is not None and self.stream,
            "skip_special_tokens=false": self.skip_special_tokens is False,
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "stream_options without stream": self.stream_options and not self.stream,
            "stream_options.continuous_usage_stats": (
                self.stream_options and self.stream_options.continuous_usage_stats
            ),
            "truncate_prompt_tokens=0": self.truncate_prompt_tokens == 0,
        }
        for name, advice in REFUSED.items():
            if is_meant(name, (self.model_extra or {}).get(name)):
                return f"{name} ({advice})" if advice else name
        return next((name for name, is_given in missing.items() if is_given), None)

    def json_schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the text, if any.

        Raises:
            InvalidArgumentError: several fields have a schema, or a schema is not an object.
        """
        outputs = self.structured_outputs or StructuredOutputs.model_validate({})
        form = self.response_format or ResponseFormat()
        given: list[Any] = [outputs.json_schema] if outputs.json_schema is not None else []
        if isinstance(outputs.json_schema, str):  # never a path
            try:
                given = [json.loads(outputs.json_schema)]
            except (ValueError, RecursionError) as error:
                raise InvalidArgumentError(
                    f"structured_outputs.json is not JSON: {error}", param="structured_outputs.json"
                ) from error
        given += [{"type": "object"}] if outputs.json_object else []
        given += [{"type": "object"}] if form.type == "json_object" else []
        if form.type == "json_schema":
            given.append((form.json_schema or {}).get("schema"))
        if len(given) > 1:
            raise InvalidArgumentError(
                "response_format and structured_outputs have several schemas; give one"
            )
        if given and not isinstance(given[0], dict):
            raise InvalidArgumentError(
                "the JSON Schema must be an object, as in response_format: "
                '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}'
            )
        return given[0] if given else None

    def arguments(self) -> GenerateArguments:
        """Return the arguments of `generate` for the fields that both requests have."""
        if name := self.unsupported():
            [field] = re.findall(r"^[\w.]+", name)  # without its value or advice
            raise UnsupportedFieldError(f"{name} is not supported", param=field)
        outputs = self.structured_outputs
        given = {name: getattr(self, field) for name, field in _FIELDS.items()}
        given |= {
            "top_k": self.top_k and max(0, self.top_k),
            "top_p": sys.float_info.min if self.top_p == 0 else self.top_p,
            "seed": None if self.seed is None else self.seed % (1 << 64),
            "stop": self.stop or None,
            "regex": outputs and outputs.regex,
            "choices": outputs and outputs.choice,
            "json_schema": self.json_schema(),
        }
        arguments: Any = {name: value for name, value in given.items() if value is not None}
        if self.use_beam_search:
            arguments.pop("best_of", None)
            arguments |= {"num_beams": self._n_beams(), "temperature": 0.0}
        elif self.best_of is None and self.temperature == 0:
            # Greedy copies are all the same; as in vLLM, the filters have no effect.
            for name in ("num_return_sequences", "top_k", "top_p", "min_p", "typical_p"):
                arguments.pop(name, None)
        if self.allowed_token_ids is not None:
            arguments["logits_processor"] = [_only(self.allowed_token_ids)]
        return cast(GenerateArguments, arguments)

    def _n_beams(self) -> int:
        """Return the number of beams of a beam search: `best_of` if given, otherwise `n`."""
        field = "n" if self.best_of is None else "best_of"
        n_beams, n = getattr(self, field) or 1, self.n or 1
        if max(2, n_beams) < n:
            raise InvalidArgumentError(f"best_of is {n_beams}, less than n, {n}", param="best_of")
        if n_beams > _MAX_BEAMS:
            raise InvalidArgumentError(
                f"{field} is {n_beams}; a beam search has at most {_MAX_BEAMS} beams", param=field
            )
        return max(2, n_beams)


Prompts = Annotated[list[AnyText | List[TokenId]], Field(fail_fast=True, max_length=10_000)]


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    prompt: Annotated[
        AnyText | List[TokenId] | Prompts | None,
        Field(union_mode="left_to_right"),
        BeforeValidator(_check_n_prompts),
    ] = Field(
        "",
        description="A text, a list of token ids, or a list of texts and lists of ids.",
    )
    max_tokens: Annotated[int, Field(ge=0, le=1 << 20), Whole] | None = 16
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=1000), Whole] | None = None
    suffix: AnyText | None = None

    def unsupported(self) -> str | None:
        """Return the name of an unsupported field, perhaps with its value, or None."""
        return "suffix" if self.suffix else super().unsupported()

    def arguments(self) -> GenerateArguments:
        """Return the keyword arguments; `echo` with `logprobs` needs those of the prompt.

        With max_tokens=0, the reply drops the only new token.
        """
        arguments = super().arguments()
        arguments["max_new_tokens"] = 16 if self.max_tokens is None else max(1, self.max_tokens)
        if self.logprobs is not None:
            arguments["logprobs"] = self.logprobs
            if self.echo:
                arguments["prompt_logprobs"] = max(self.logprobs, self.prompt_logprobs or 0)
        return arguments

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each a text or token ids.

        Raises:
            InvalidArgumentError: the list of prompts is empty, or an unknown field may be the
                prompt.
        """
        if "prompt" not in self.model_fields_set and self.unknown_fields:
            unknown = self.unknown_fields[0]
            advice = f"the field {unknown!r} has no meaning here"
            if unknown == "messages":
                advice = "send messages to /v1/chat/completions"
            raise InvalidArgumentError(f"prompt is missing; {advice}")
        if self.prompt is None or isinstance(self.prompt, str):
            return [self.prompt or ""]
        if not self.prompt:
            raise InvalidArgumentError("prompt is an empty list; give at least one", param="prompt")
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class ContentPart(_Request):
    """A part of a message; only texts are supported."""

    type: Literal["text"]
    text: AnyText


def _header_names(names: Iterable[str]) -> list[str]:
    """Return the names that a response header may hold, at most 20."""
    return [name for name in names if re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", name)][:20]


class ChatMessage(_Request):
    """A message of a conversation."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: AnyText | List[ContentPart] | None = None

    def text(self) -> str:
        """Return the content as one text; only the assistant's may be missing."""
        if self.content is None and self.role != "assistant":
            raise InvalidArgumentError(
                f"messages: a message of role {self.role} has no content", param="messages"
            )
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class ChatCompletionRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    messages: List[ChatMessage] = Field(min_length=1)
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20), Whole] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=1 << 20), Whole] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=1000), Whole] | None = None
    add_generation_prompt: bool | None = True
    tools: List[Any] | None = None
    tool_choice: Any = None

    @property
    def unknown_fields(self) -> list[str]:
        """The names of unknown fields, also of unknown fields of messages that are not null."""
        extra = [item for message in self.messages for item in (message.model_extra or {}).items()]
        names = dict.fromkeys(f"messages.{name}" for name, value in extra if value is not None)
        return _header_names([*super().unknown_fields, *names])

    def unsupported(self) -> str | None:
        """Return the name of an unsupported field, perhaps with its value, or None."""
        if self.top_logprobs and not self.logprobs:
            return "top_logprobs without logprobs"
        return "tools" if self.tools and self.tool_choice != "none" else super().unsupported()

    def arguments(self) -> GenerateArguments:
        """Return the keyword arguments; by default, the answer may fill the context."""
        arguments = super().arguments()
        arguments["max_new_tokens"] = self.max_completion_tokens or self.max_tokens or 1 << 20
        if self.logprobs:
            arguments["logprobs"] = self.top_logprobs or 0
        return arguments


class TokenizeRequest(_Request):
    """The body of POST /tokenize; `content` is llama.cpp's name of `prompt`."""

    model: AnyText | None = None
    prompt: AnyText | None = None
    content: AnyText | None = None
    messages: List[ChatMessage] | None = None
    add_generation_prompt: bool | None = True
    add_special_tokens: bool | None = False
    return_token_strs: bool | None = False


class DetokenizeRequest(_Request):
    """The body of POST /detokenize."""

    model: AnyText | None = None
    tokens: List[TokenId]


def check_limit(most: int, number: int, problem: str, advice: str) -> None:
    """Raise InvalidArgumentError if a request's number exceeds a limit; `problem` has a {}."""
    if number > most:
        raise InvalidArgumentError(f"{problem.format(f'{number:,}')}, more than {most:,}; {advice}")


class InterventionRequest(EditRequest):
    """Edit an activation in one pass, also at some positions only."""

    positions: List[Annotated[int, Field(ge=-100_000, le=100_000)]] | None = Field(
        None, min_length=1, max_length=1000, description="Positions to edit; all by default."
    )


class InspectRequest(_SamplingFields):  # type: ignore[misc, valid-type]
    """The body of POST /api/inspect: a text whose next token is inspected."""

    model: AnyText | None = None
    prompt: AnyText | List[TokenId] = Field(description="A text or token ids.")
    n: int = Field(10, ge=1, le=100, description="The number of likely tokens to return.")
    tokens: List[TokenId] | None = Field(
        None,
        min_length=1,
        max_length=10,
        description="Tokens to track in addition to the two most likely.",
    )
    include: List[Literal["lens", "attention", "neurons", "attribution", "lines"]] = Field(
        default=["lens", "attention", "neurons", "attribution", "lines"]
    )
    seed: int | None = Field(None, ge=0, lt=2**32, description="Seed of the draw to show.")
    n_drawn: int = Field(0, ge=0, le=100_000, description="Tokens drawn with the seed before.")
    points: List[Annotated[str, Field(max_length=100)]] = Field(default=[], max_length=100)
    n_rows: int | None = Field(
        None, ge=1, description="Return the rows of `points` for the last tokens only."
    )
    interventions: List[InterventionRequest] = Field(default=[], max_length=100)

    def sampling_options(self) -> GenerationOptions:
        """Return the options that change the probabilities of the next token."""
        options = {name: getattr(self, name) for name in _SAMPLING}
        return GenerationOptions(**options | {"top_k": max(0, self.top_k)})


class SaliencyRequest(_ClosedRequest):
    """The body of POST /api/saliency: a text, and the token that came after it."""

    model: AnyText | None = None
    prompt: List[TokenId]
    token: TokenId
    steps: int = Field(8, ge=1, le=64, description="Gradients to average.")
    interventions: List[InterventionRequest] = Field(default=[], max_length=100)


class DirectionRequest(_ClosedRequest):
    """The body of POST /api/direction: two lists of texts."""

    model: AnyText | None = None
    texts_a: List[Annotated[str, Field(max_length=200)]] = Field(min_length=1, max_length=50)
    texts_b: List[Annotated[str, Field(max_length=200)]] = Field(min_length=1, max_length=50)
    point: str = Field(pattern=r"^blocks\.\d+\.resid$", max_length=30)


class MergesRequest(_ClosedRequest):
    """The body of POST /api/merges: a text to learn merges from."""

    text: Annotated[Text, Field(max_length=20_000)]
    n: int = Field(200, ge=1, le=1000, description="The number of merges to learn.")


class ExplainRequest(_ClosedRequest):
    """The body of POST /api/explain."""

    model: AnyText | None = None
    prompt: AnyText | List[TokenId] = Field(description="A text or token ids.")


def _only(ids: list[int]) -> LogitsProcessor:
    """Return a logits processor that forbids every other id."""
    import numpy as np

    indices = np.unique(ids)

    def allowed_token_ids(_: list[int], logits: Array) -> Array:
        allowed = np.full_like(logits, -np.inf)
        allowed[indices] = logits[indices]
        return allowed

    return allowed_token_ids
