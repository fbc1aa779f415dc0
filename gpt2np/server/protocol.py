"""Requests of OpenAI's protocol, with vLLM's additional fields, and the options that they mean.

Null means the default. A field that would change the text, and that gpt2np lacks, is an error; the
response's header X-Ignored-Fields names all other unknown fields.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json, model_validator

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.errors import ContextLengthError, InvalidArgumentError, errors_about
from gpt2np.generation.options import FILTERS, GenerationOptions
from gpt2np.generation.request import GenerateArguments
from gpt2np.interp import Intervention
from gpt2np.option_types import AnyText, List, LogitBias, T, Text, TokenId
from gpt2np.options import options_of

_REFUSED_UNLESS_1 = ("best_of", "num_beams", "repeat_penalty", "typical_p")
REFUSED = dict.fromkeys(_REFUSED_UNLESS_1, 1) | dict.fromkeys(
    (
        *("allowed_token_ids", "chat_template", "continue_final_message", "functions", "grammar"),
        *("guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema", "regex"),
        *("include_stop_str_in_output", "max_new_tokens", "no_repeat_ngram_size", "prompt_embeds"),
        *("return_tokens_as_token_ids", "stop_regex", "suffix", "tools", "truncate_prompt_tokens"),
        "use_beam_search",
    ),
    0,
)
"""Fields that would change the text, with a value that does not; nor does an empty value."""

_MAX_OPTION_ENTRIES = 1000  # of a list of texts or ids, which takes time in each decode step
_MAX_OPTION_CHARACTERS = 50_000
_MAX_SALIENCY_TOKENS = 256  # the pass of GPT-2 small then takes half a gigabyte


def _check_characters(texts: str | list[str]) -> str | list[str]:
    if sum(map(len, texts)) > _MAX_OPTION_CHARACTERS:
        raise ValueError(f"more than {_MAX_OPTION_CHARACTERS:,} characters")
    return texts


Entries = Annotated[list[T], Field(fail_fast=True, max_length=_MAX_OPTION_ENTRIES)]
Texts = Annotated[Entries[Text], AfterValidator(_check_characters)]
Ids = Entries[TokenId]
NTop = Annotated[int, Field(ge=0, le=20)]
Indices = Annotated[list[int], Field(fail_fast=True, min_length=1, max_length=1000)]
Factor = Annotated[float, Field(ge=-1000, le=1000)]
Point = Annotated[str, Field(pattern=r"^(embed|blocks\.)", max_length=100)]


class _Request(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class OpenRequest(_Request):
    """A request whose unknown fields are ignored, and named in a header of the response."""

    model_config = ConfigDict(extra="allow")

    @property
    def unknown_fields(self) -> list[str]:
        """The names of fields that have no meaning here, as far as a header may hold them."""
        names = [name for name in self.model_extra or () if name not in REFUSED]
        return [name for name in names if re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", name)][:20]

    @model_validator(mode="after")
    def _check_unknown(self) -> OpenRequest:
        for name, value in (self.model_extra or {}).items():
            if name in REFUSED and value and value != REFUSED[name]:
                raise unsupported(name, "is not supported")
        return self


class _ClosedRequest(_Request):
    """Unknown fields are errors: ignoring a misspelled field would change the result."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(_Request):
    """What a stream contains besides the text."""

    include_usage: bool | None = False


class StructuredOutputs(_ClosedRequest):
    """A constraint on the whole continuation: a pattern, a list of texts, or a JSON Schema."""

    regex: Annotated[Text, Field(max_length=_MAX_OPTION_CHARACTERS)] | None = None
    choice: Texts | None = Field(None, min_length=1)
    json_schema: dict[str, Any] | Json[dict[str, Any]] | None = Field(None, alias="json")


class NamedSchema(_Request):
    """A JSON Schema with a name."""

    json_schema: dict[str, Any] = Field(alias="schema")


class ResponseFormat(_ClosedRequest):
    """The form of the text: any text, a JSON object, or JSON that is valid for a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: NamedSchema | None = None


class EditRequest(_ClosedRequest):
    """Multiply an activation by `factor`, then add `strength` times `vector` to it.

    By default, the factor is 1 with a vector, or else 0.
    """

    point: Point
    positions: Indices | None = None
    heads: Indices | None = None
    channels: Indices | None = None
    factor: Factor | None = None
    vector: List[Annotated[float, Field(ge=-1e6, le=1e6)]] | None = Field(None, min_length=1)
    strength: Factor = 1


Edits = Annotated[list[EditRequest], Field(fail_fast=True, max_length=100)]

_ANY_OBJECT = {"type": "object"}
_NO_ARGUMENTS = {"type": "object", "additionalProperties": False}

JSON_NAMES = {
    name: option.json_name or name for name, option in options_of(GenerationOptions).items()
}
"""Option → the field of a request that has the same meaning."""


class _Filters(_Request):
    """The fields that restrict and rescale the probabilities of the next token."""

    temperature: float | None = None
    top_k: int | None = Field(None, ge=-1, description="0 or -1 for all tokens.")
    top_p: float | None = None
    min_p: float | None = None

    def filters(self) -> dict[str, float]:
        """Return the options of the filters that the request has."""
        given = {name: getattr(self, name) for name in FILTERS if name in _Filters.model_fields}
        if self.top_k == -1:
            given["top_k"] = 0
        return {name: value for name, value in given.items() if value is not None}


class GenerationRequest(_Filters, OpenRequest):
    """The fields that completions and chat completions have in common; see `GenerationOptions`."""

    model: AnyText | None = None
    n: int | None = None
    seed: Annotated[int, Field(ge=-1 << 63, lt=1 << 63)] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: LogitBias | None = Field(None, max_length=_MAX_OPTION_ENTRIES)
    bad_words: Texts | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: Annotated[AnyText, AfterValidator(_check_characters)] | Texts | None = None
    stop_token_ids: Ids | None = None
    token_healing: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    response_format: ResponseFormat | None = None
    skip_special_tokens: Literal[True] | None = True
    return_token_ids: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    interventions: Edits | None = None

    def schemas(self) -> dict[str, dict[str, Any]]:
        """Return the JSON Schemas that the text must have, by the field that has the schema."""
        outputs, form = self.structured_outputs, self.response_format
        given = {}
        if outputs and outputs.json_schema is not None:
            given["structured_outputs.json"] = outputs.json_schema
        if form and form.type == "json_object":
            given["response_format"] = _ANY_OBJECT
        if form and form.type == "json_schema":
            if form.json_schema is None:
                raise unsupported("response_format", "has no JSON Schema")
            given["response_format"] = form.json_schema.json_schema
        return given

    def field_names(self) -> dict[str, str]:
        """Return, by option, the field that sets it."""
        return JSON_NAMES | dict.fromkeys(("json_schema",), next(iter(self.schemas()), ""))

    def named(self, error: Exception) -> Exception:
        """Return an error of an option as an error of the field that the client has sent."""
        if not isinstance(error, (ContextLengthError, InvalidArgumentError)):
            return error
        names = self.field_names()

        def spell(name: str, value: str) -> str:
            return f"{names[name]}{value and '='}{value}" if names.get(name) else ""

        is_long = isinstance(error, ContextLengthError)
        kind = ContextLengthError if is_long else InvalidArgumentError
        param = "prompt" if is_long else error.param or ""
        return kind(error.renamed(spell), param=names.get(param, param) or None)

    def arguments(self) -> GenerateArguments:
        """Return the arguments of `generate` for the fields that both requests have."""
        outputs, schemas = self.structured_outputs, self.schemas()
        if len(schemas) > 1:
            raise unsupported(next(reversed(schemas)), "contradicts another schema; give one")
        given = {
            name: getattr(self, field, None)
            for name, field in JSON_NAMES.items()
            if field in GenerationRequest.model_fields
        }
        given |= {
            **self.filters(),
            "seed": None if self.seed is None else self.seed % (1 << 64),
            "stop": self.stop or None,
            "regex": outputs and outputs.regex,
            "choices": outputs and outputs.choice,
            "json_schema": next(iter(schemas.values()), None),
        }
        if self.temperature == 0:  # as in vLLM, filters have no effect
            given |= dict.fromkeys(FILTERS)
        return cast(GenerateArguments, {k: v for k, v in given.items() if v is not None})


Prompts = Annotated[list[AnyText | List[TokenId]], Field(fail_fast=True, max_length=10_000)]


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    prompt: AnyText | List[TokenId] | Prompts | None = Field("", union_mode="left_to_right")
    max_tokens: Annotated[int, Field(ge=0, le=1 << 20)] | None = 16
    echo: bool | None = False
    logprobs: NTop | None = None
    prompt_logprobs: NTop | None = None

    @model_validator(mode="after")
    def _check_stream(self) -> CompletionRequest:
        if self.prompt_logprobs is not None and self.stream:
            raise unsupported("prompt_logprobs", "is not supported with stream")
        return self

    def arguments(self) -> GenerateArguments:
        """Return the keyword arguments; with max_tokens=0, the reply drops the only new token."""
        arguments = super().arguments()
        arguments["max_new_tokens"] = 16 if self.max_tokens is None else max(1, self.max_tokens)
        n_prompt_top = self.prompt_logprobs
        if self.logprobs is not None:
            arguments["logprobs"] = self.logprobs
            n_prompt_top = max(self.logprobs, n_prompt_top or 0) if self.echo else n_prompt_top
        if n_prompt_top is not None:
            arguments["prompt_logprobs"] = n_prompt_top
        return arguments

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each a text or token ids."""
        if self.prompt is None or isinstance(self.prompt, str):
            return [self.prompt or ""]
        if not self.prompt:
            raise unsupported("prompt", "is an empty list; give at least one")
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class Function(_Request):
    """A function that the model may call: the JSON Schema of its arguments."""

    name: Annotated[AnyText, Field(min_length=1, max_length=64)]
    parameters: dict[str, Any] | None = None


class Tool(_Request):
    """A function, or the choice of one by its name."""

    type: Literal["function"]
    function: Function


class ContentPart(_Request):
    """A part of a message; only texts are supported."""

    type: Literal["text"]
    text: AnyText


class ChatMessage(_Request):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: AnyText | List[ContentPart] | None = None

    def text(self) -> str:
        if self.content is None and self.role != "assistant":
            raise unsupported("messages", f"has a message of role {self.role} without content")
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class ChatCompletionRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    messages: List[ChatMessage] = Field(min_length=1)
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    logprobs: bool | None = False
    top_logprobs: NTop | None = None
    add_generation_prompt: bool | None = True
    tools: List[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None

    @model_validator(mode="after")
    def _check_tools(self) -> ChatCompletionRequest:
        if isinstance(self.tool_choice, Tool) and not self.forced_function:
            raise unsupported("tool_choice", "names no function of tools, or one of several")
        if self.tools and self.tool_choice != "none" and not self.forced_function:
            raise unsupported(
                "tools",
                "is not supported unless tool_choice names a function, or is 'required' with one "
                "function; use response_format for JSON",
            )
        return self

    @property
    def forced_function(self) -> Function | None:
        """The function that the model must call: the answer is the JSON of its arguments."""
        functions = [tool.function for tool in self.tools or ()]
        if isinstance(self.tool_choice, Tool):
            name = self.tool_choice.function.name
            functions = [function for function in functions if function.name == name]
        elif self.tool_choice != "required":
            return None
        return functions[0] if len(functions) == 1 else None

    def schemas(self) -> dict[str, dict[str, Any]]:
        """Return the JSON Schemas that the text must have, by the field that has the schema."""
        schemas = super().schemas()
        if function := self.forced_function:
            schemas["tools"] = function.parameters or _NO_ARGUMENTS
        return schemas

    def field_names(self) -> dict[str, str]:
        """Return, by option, the field that sets it."""
        names = super().field_names() | {"prompt": "messages"}
        if self.max_completion_tokens is not None:
            names["max_new_tokens"] = "max_completion_tokens"
        return names

    def arguments(self) -> GenerateArguments:
        """Return the keyword arguments; by default, the answer may fill the context."""
        arguments = super().arguments()
        arguments["allowed_special"] = "all"  # of the template: `render` refuses others
        arguments["max_new_tokens"] = self.max_completion_tokens or self.max_tokens or 1 << 20
        if self.logprobs:
            arguments["logprobs"] = self.top_logprobs or 0
        return arguments


class TokenizeRequest(OpenRequest):
    """The body of POST /tokenize: a prompt or messages."""

    model: AnyText | None = None
    prompt: AnyText | None = None
    messages: List[ChatMessage] | None = None
    add_generation_prompt: bool | None = True

    @model_validator(mode="after")
    def _check_given(self) -> TokenizeRequest:
        if self.prompt is None and self.messages is None:
            raise unsupported("prompt", "is missing")
        return self


class DetokenizeRequest(_Request):
    """The body of POST /detokenize."""

    model: AnyText | None = None
    tokens: List[TokenId]


class InspectRequest(_Filters, _ClosedRequest):
    """The body of POST /api/inspect: a text whose next token is inspected."""

    model: AnyText | None = None
    prompt: AnyText | Annotated[List[TokenId], Field(min_length=1)]
    n: int = Field(10, ge=1, le=100, description="The number of likely tokens to return.")
    tokens: list[TokenId] | None = Field(
        None, max_length=10, description="Tokens to track in addition to the two most likely."
    )
    include: List[Literal["lens", "attention", "neurons", "lines"]] = [
        *("lens", "attention", "neurons", "lines")
    ]
    seed: int | None = Field(None, ge=0, lt=2**32, description="Seed of the draw to show.")
    n_drawn: int = Field(0, ge=0, le=100_000, description="Tokens drawn with the seed before.")
    points: list[Point] = Field([], max_length=100)
    n_rows: int | None = Field(None, ge=1, description="Rows of `points` to return, from the end.")
    interventions: Edits = []

    def sampling_options(self) -> GenerationOptions:
        """Return the options that change the probabilities of the next token."""
        temperature = 1.0 if self.temperature is None else self.temperature
        given: Any = FILTERS | self.filters()
        return GenerationOptions(temperature=temperature, **given)


class SaliencyRequest(_ClosedRequest):
    """The body of POST /api/saliency: a text, and the token that came after it."""

    model: AnyText | None = None
    prompt: list[TokenId] = Field(min_length=1, max_length=_MAX_SALIENCY_TOKENS, fail_fast=True)
    token: TokenId
    steps: int = Field(8, ge=1, le=64, description="Gradients to average.")
    interventions: Edits = []


class TeachRequest(_ClosedRequest):
    """The body of POST /api/teach."""

    model: AnyText | None = None
    text: Annotated[str, Field(max_length=20_000, description="The page to learn.")]


class StopTeachingRequest(_ClosedRequest):
    """The body of POST /api/teach/stop."""

    model: AnyText


def unsupported(field: str, problem: str) -> InvalidArgumentError:
    """Return the error of a request's field."""
    return InvalidArgumentError(f"{field} {problem}", param=field)


def hooks_of(edits: Sequence[EditRequest], config: GPT2Config) -> list[Intervention]:
    """Return the hooks for a request's interventions."""
    with errors_about("interventions"):  # once for all layers, not in each pass
        return [_hook(edit).for_layers(config.n_layer) for edit in edits]


def _hook(edit: EditRequest) -> Intervention:
    value = np.float32(edit.strength) * np.asarray(edit.vector or 0.0, np.float32)
    factor = (0.0 if edit.vector is None else 1.0) if edit.factor is None else edit.factor
    return Intervention((edit.point,), factor, value, edit.positions, edit.heads, edit.channels)
