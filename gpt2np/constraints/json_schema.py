"""Compilation of JSON Schemas (draft 2020-12) to syntax trees: exactly, or not at all.

Every text that the tree matches is valid. An unsupported keyword is an error, because a text that
ignores the keyword could be invalid. Some valid texts are never generated:

- Texts with white space, or with properties in another order than in `properties`.
- Objects with further properties, except if the schema has neither `properties` nor `required`.
- Values below `depth` levels of arrays and objects where the schema allows any value, and below
  `depth` references of a schema to itself.
- Numbers with more than MAX_DIGITS digits before or after the point. If the schema has bounds, this
  limit applies to all digits together.
- Without `type`: values of types that no keyword of the schema is about.

A `maxLength` or `maxItems` from _MAX_BOUND on is ignored, because no context holds such a text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial, reduce
from itertools import chain, combinations, product
from typing import Any
from urllib.parse import unquote

from gpt2np.constraints import json_text
from gpt2np.constraints.json_text import NOTHING, any_value, either
from gpt2np.constraints.syntax import ANYTHING, Repetition, Tree, WorkCounter, parse
from gpt2np.errors import InvalidArgumentError, is_integer, short_repr
from gpt2np.options import is_number

_SUBSCHEMA = 1000  # units of work, each time that references lead to it
_MAX_BOUND = 50_000  # a larger bound is dropped: texts of a context are shorter

_ANNOTATIONS = {
    *("$schema", "$comment", "$defs", "definitions", "title", "description", "default"),
    *("examples", "deprecated", "readOnly", "writeOnly", "discriminator"),
}
_TYPES = {
    **{name: {name} for name in ("string", "integer", "boolean", "null", "array", "object")},
    "number": {"number", "integer"},
}
_ALL_TYPES = frozenset().union(*_TYPES.values())
_TYPE_OF = {  # keyword → the type of the values that it is about
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "number"),
    **dict.fromkeys(("items", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("properties", "required", "additionalProperties"), "object"),
}

_Check = tuple[Callable[[Any], object], str]
_COUNT: _Check = lambda x: is_integer(x) and x >= 0, "an integer from 0"
_NUMBER: _Check = is_number, "a number"
_TEXT: _Check = lambda x: isinstance(x, str), "a text"
_LIST: _Check = lambda x: isinstance(x, list) and x, "a list that is not empty"
_TEXTS: _Check = lambda x: isinstance(x, list) and all(isinstance(t, str) for t in x), "texts"
_ANYTHING: _Check = lambda x: True, ""
_CHECKS: dict[str, _Check] = {
    "type": (
        lambda x: x and all(isinstance(t, str) and t in _TYPES for t in _as_list(x)),
        f"one of {', '.join(_TYPES)}, or a list of them",
    ),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("pattern", "$ref", "format"), _TEXT),
    **dict.fromkeys(("enum", "allOf", "anyOf", "oneOf"), _LIST),
    "required": _TEXTS,
    "properties": (lambda x: isinstance(x, dict), "an object"),
    **dict.fromkeys(("const", "items", "additionalProperties"), _ANYTHING),
}

_LABEL = "[a-z0-9]{1,15}(?:-[a-z0-9]{1,15}){0,2}"
_HOST = rf"(?:{_LABEL}\.){{1,3}}[a-z]{{2,10}}"
_DATE = (  # without 29 February
    r"[12][0-9]{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    r"|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_HOUR = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR})"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_N = "[0-9]{1,4}"
_FORMATS = {  # some valid texts of each format
    "date-time": f"{_DATE}T{_TIME}",
    "date": _DATE,
    "time": _TIME,
    "duration": f"P(?:{_N}W|{_N}D|(?:{_N}D)?T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S))",
    "email": rf"[A-Za-z0-9_+-]{{1,20}}(?:\.[A-Za-z0-9_+-]{{1,20}}){{0,2}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "ipv6": "[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}",
    "uri": rf"https?://{_HOST}(?::[1-9][0-9]{{0,3}})?(?:/[A-Za-z0-9._~-]{{0,30}}){{0,8}}",
    "uuid": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}

_Keywords = dict[str, Any]
"""The keywords of a schema without references and alternatives.

`type` is a set. Each subschema, as of `items`, is a list of `_Part`, all of which must hold.
"""


@dataclass(frozen=True)
class _Part:
    """A subschema, its JSON pointer, and the references that lead to it."""

    schema: Any
    path: str
    refs: tuple[str, ...] = ()

    def __getitem__(self, key: str | int) -> _Part:
        escaped = str(key).replace("~", "~0").replace("/", "~1")
        return replace(self, schema=self.schema[key], path=f"{self.path}/{escaped}")

    def all(self, keyword: str) -> list[_Part]:
        """Return the entries of a list."""
        return [self[keyword][i] for i in range(len(self.schema.get(keyword, ())))]


def schema_tree(schema: object, depth: int) -> tuple[Tree, bool]:
    """Compile a JSON Schema to a tree; for `depth`, see above.

    Returns the tree, and whether a larger depth would allow more texts.

    Raises:
        InvalidArgumentError: the schema is malformed or not supported.
        PatternTooLargeError: the schema is too large.
    """
    try:
        compiler = _Compiler(schema, depth)
        return compiler.tree([_Part(schema, "#")]), compiler.is_cut
    except RecursionError as error:
        raise _error("#", "the schema nests too deep") from error


class _Compiler:
    """A compiler of one schema, `root`, to which its references point."""

    def __init__(self, root: object, depth: int) -> None:
        self.root = root
        self.depth = depth
        self.work = WorkCounter()
        self.is_cut = False  # whether values were left out because of `depth`

    def tree(self, parts: Sequence[_Part]) -> Tree:
        """Return a tree of the values that are valid for all parts."""
        path = parts[0].path
        alternatives = self._all_of([self._alternatives(part) for part in parts], path)
        return either([self._tree(keywords, path) for keywords in alternatives])

    def _all_of(self, factors: Sequence[Sequence[_Keywords]], path: str) -> list[_Keywords]:
        """Return the alternatives of a conjunction of alternatives."""
        self.work.add(_SUBSCHEMA * math.prod(map(len, factors)))
        return [reduce(partial(_merge, path), combined) for combined in product(*factors)]

    def _alternatives(self, part: _Part) -> list[_Keywords]:
        """Return schemas without references and alternatives, which together equal a part."""
        schema = part.schema
        if isinstance(schema, bool):
            return [{}] if schema else []
        _check(part)
        factors = [[_own_keywords(part)]]
        if "$ref" in schema:
            target = self._target(part)
            is_too_deep = target.refs.count(target.path) > self.depth
            factors.append([] if is_too_deep else self._alternatives(target))
            self.is_cut |= is_too_deep
        factors += map(self._alternatives, part.all("allOf"))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                branches = [self._alternatives(branch) for branch in part.all(keyword)]
                if keyword == "oneOf":
                    self._check_disjoint(branches, part.path)
                factors.append([*chain.from_iterable(branches)])
        return self._all_of(factors, part.path)

    def _target(self, part: _Part) -> _Part:
        """Return the subschema to which the reference of a part leads."""
        reference = unquote(part.schema["$ref"])
        target = _Part(self.root, "#")
        try:
            start, *keys = reference.split("/")
            if start != "#":
                raise KeyError(start)
            for key in keys:
                key = key.replace("~1", "/").replace("~0", "~")
                target = target[int(key) if isinstance(target.schema, list) else key]
        except (KeyError, ValueError, IndexError, TypeError) as error:
            text = f"$ref {short_repr(reference)} leads nowhere; only references such as "
            raise _error(part.path, text + '"#/$defs/name" are supported') from error
        return replace(target, refs=(*part.refs, target.path))

    def _check_disjoint(self, branches: Sequence[Sequence[_Keywords]], path: str) -> None:
        for (i, first), (j, second) in combinations(enumerate(branches), 2):
            if not self._are_disjoint(first, second):
                raise _error(
                    path,
                    f"oneOf is supported where no value is valid for two branches; {i} and {j} "
                    "may both be; use anyOf, or a required property with different constants",
                )

    def _are_disjoint(self, first: Iterable[_Keywords], second: Iterable[_Keywords]) -> bool:
        """Return whether certainly no value is valid for two lists of alternatives."""
        pairs = [*product(first, second)]
        self.work.add(_SUBSCHEMA * len(pairs))
        return all(self._excludes(a, b) for a, b in pairs)

    def _excludes(self, a: _Keywords, b: _Keywords) -> bool:
        types = _types(a) & _types(b)
        if "enum" in a and "enum" in b:
            return not any(value in b["enum"] for value in a["enum"])
        return not types or (
            types == {"object"}
            and any(
                self._are_disjoint(*(self._named(keywords, name) for keywords in (a, b)))
                for name in {*a.get("required", ())} & {*b.get("required", ())}
            )
        )

    def _named(self, keywords: _Keywords, name: str) -> list[_Keywords]:
        """Return the alternatives of the property `name`."""
        parts = _property(keywords, name)
        return self._all_of([self._alternatives(part) for part in parts] or [[{}]], "#")

    def _tree(self, keywords: _Keywords, path: str) -> Tree:
        """Return a tree for a schema without references and alternatives."""
        if "enum" in keywords:
            return _enumeration(keywords, path)
        if not keywords:
            return self._any_value(self.depth)
        implied = (_TYPES[_TYPE_OF[keyword]] for keyword in keywords.keys() - {"type"})
        types = keywords["type"] if "type" in keywords else set().union(*implied)
        is_whole = "number" not in types
        trees: dict[str, Callable[[], Tree]] = {
            "string": lambda: _string(keywords, path),
            "integer": lambda: _number(keywords, is_whole),  # also of "number"
            "boolean": lambda: json_text.BOOLEAN,
            "null": lambda: json_text.NULL,
            "array": lambda: self._array(keywords),
            "object": lambda: self._object(keywords),
        }
        return either([tree() for name, tree in trees.items() if name in types])

    def _any_value(self, depth: int) -> Tree:
        self.is_cut = True
        return any_value(depth)

    def _array(self, keywords: _Keywords) -> Tree:
        least, most = keywords.get("minItems", 0), keywords.get("maxItems")
        if most is not None and least > most:
            return NOTHING
        has_items = "items" in keywords
        item = self.tree(keywords["items"]) if has_items else self._any_value(self.depth - 1)
        return json_text.array(item, least, most)

    def _object(self, keywords: _Keywords) -> Tree:
        properties, required = keywords.get("properties", {}), keywords.get("required", ())
        names = dict.fromkeys((*properties, *required))
        value: Tree = NOTHING
        if "additionalProperties" in keywords:
            value = self.tree(keywords["additionalProperties"])
        elif not names or len(names) > len(properties):
            value = self._any_value(self.depth - 1)
        values = {name: self.tree(parts) for name, parts in properties.items()}
        members = [
            (json_text.member(json_text.literal(name), values.get(name, value)), name in required)
            for name in names
        ]
        further = None if names else json_text.member(json_text.ANY_STRING, value)
        return json_text.object_of(members, further)


def _error(path: str, problem: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"json_schema, at {path}: {problem}", param="json_schema")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check(part: _Part) -> None:
    """Check that the keywords of a subschema are supported, and that their values are valid."""
    if not isinstance(part.schema, dict):
        raise _error(part.path, f"{short_repr(part.schema)} is no schema")
    for keyword, value in part.schema.items():
        is_root = part.path == "#"
        if keyword in _ANNOTATIONS or (keyword == "$id" and is_root):
            continue
        if keyword == "uniqueItems" and value is False:
            continue
        if keyword not in _CHECKS:
            raise _error(part.path, f"{short_repr(keyword)} is not supported; omit it")
        is_valid, expected = _CHECKS[keyword]
        if not is_valid(value):
            raise _error(part.path, f"{keyword} is {short_repr(value)}; it must be {expected}")


def _own_keywords(part: _Part) -> _Keywords:
    """Return the keywords of a part itself, without its references and alternatives."""
    keywords = {name: value for name, value in part.schema.items() if name in _TYPE_OF}
    for name in {"maxLength", "maxItems"} & keywords.keys():
        if keywords[name] >= _MAX_BOUND:
            del keywords[name]
    if "type" in part.schema:
        keywords["type"] = set().union(*(_TYPES[name] for name in _as_list(part.schema["type"])))
    for name in {"items", "additionalProperties"} & keywords.keys():
        keywords[name] = [part[name]]
    if "properties" in keywords:
        properties = part["properties"]
        keywords["properties"] = {name: [properties[name]] for name in properties.schema}
    values = [[part.schema["const"]]] if "const" in part.schema else []
    values += [part.schema["enum"]] if "enum" in part.schema else []
    return {**keywords, "enum": reduce(_common, values)} if values else keywords


def _common(first: Sequence[object], second: Sequence[object]) -> list[object]:
    texts = {*map(_canonical, second)}
    return [value for value in first if _canonical(value) in texts]


def _canonical(value: object) -> str:
    """Return a text that is the same for equal JSON values: 1 = 1.0, and keys have no order."""
    numbers = partial(json.loads, parse_float=lambda text: _whole(float(text)))
    return json.dumps(numbers(json.dumps(value)), sort_keys=True)


def _whole(number: float) -> float:
    return int(number) if number.is_integer() else number


_JOINED: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
    "type": lambda a, b: a & b,
    "enum": _common,
    **dict.fromkeys(("required", "items", "additionalProperties"), lambda a, b: [*a, *b]),
}


def _merge(path: str, a: _Keywords, b: _Keywords) -> _Keywords:
    """Return keywords that mean `a` and `b`."""
    merged = {**a, **b}
    for name in a.keys() & b.keys() - {"properties"}:
        if name in _JOINED:
            merged[name] = _JOINED[name](a[name], b[name])
        elif a[name] != b[name]:
            raise _error(path, f"two values of {name} that must both hold are not supported")
    if names := dict.fromkeys((*a.get("properties", ()), *b.get("properties", ()))):
        merged["properties"] = {n: [*_property(a, n), *_property(b, n)] for n in names}
    return merged


def _property(keywords: _Keywords, name: str) -> list[_Part]:
    parts: list[_Part] = keywords.get("properties", {}).get(name)
    return parts or keywords.get("additionalProperties", [])


def _types(keywords: _Keywords) -> set[str]:
    """Return the types of the values that are valid."""
    types: set[str] = keywords.get("type", _ALL_TYPES)
    return types & {*map(_type, keywords["enum"])} if "enum" in keywords else types


def _type(value: object) -> str:
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    names = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _enumeration(keywords: _Keywords, path: str) -> Tree:
    if unsupported := sorted(keywords.keys() - {"enum", "type"}):
        raise _error(path, f"{unsupported[0]} beside enum or const is not supported; omit it")
    types = keywords.get("type", _ALL_TYPES)
    return either([json_text.literal(v) for v in keywords["enum"] if _type(v) in types])


def _string(keywords: _Keywords, path: str) -> Tree:
    least, most = keywords.get("minLength", 0), keywords.get("maxLength")
    if most is not None and least > most:
        return NOTHING
    if not {"pattern", "format"} & keywords.keys():
        if least == 0 and most is None:
            return json_text.ANY_STRING
        return json_text.string(Repetition(ANYTHING.part, least, most))
    if len({"pattern", "format", "minLength", "maxLength"} & keywords.keys()) > 1:
        text = "pattern or format beside the other, minLength or maxLength is not supported"
        raise _error(path, text + "; put the length into the pattern, as in ^[a-z]{2,5}$")
    if "pattern" in keywords:
        return json_text.string(_pattern(keywords["pattern"], path))
    if keywords["format"] not in _FORMATS:
        name = short_repr(keywords["format"])
        raise _error(path, f"format {name} is not supported; there are {', '.join(_FORMATS)}")
    return json_text.string(parse(_FORMATS[keywords["format"]]))


def _pattern(pattern: str, path: str) -> Tree:
    """Return a tree of the texts in which a pattern is found."""
    try:
        return parse(pattern, is_portable=True)
    except InvalidArgumentError as error:
        raise _error(path, str(error)) from error


def _number(keywords: _Keywords, is_whole: bool) -> Tree:
    bounds = {n: Fraction(str(keywords[n])) for n in keywords if _TYPE_OF.get(n) == "number"}
    if not bounds:
        return json_text.ANY_INTEGER if is_whole else json_text.ANY_NUMBER
    lows = [bounds[n] for n in ("minimum", "exclusiveMinimum") if n in bounds]
    highs = [bounds[n] for n in ("maximum", "exclusiveMaximum") if n in bounds]
    n_digits = max(len(str(abs(int(bound)))) for bound in (*bounds.values(), Fraction(0)))
    if not (lows and highs):
        n_digits = max(n_digits, json_text.MAX_DIGITS if is_whole else 9)
    n_decimals = 0 if is_whole else max(json_text.MAX_DIGITS - n_digits, 0)
    unit = 10**n_decimals
    limit = 10**n_digits * unit - 1
    low = max([-limit, *(math.ceil(x * unit) for x in lows)])
    high = min([limit, *(math.floor(x * unit) for x in highs)])
    low += any(low == x * unit for n, x in bounds.items() if n == "exclusiveMinimum")
    high -= any(high == x * unit for n, x in bounds.items() if n == "exclusiveMaximum")
    return json_text.numbers(low, high, n_decimals)


def largest_count(schema: Any, path: str = "#") -> tuple[int, str]:
    """Return the largest bound on a length in a schema, and a text that names keyword and place."""
    found = [(0, "it has many subschemas")]
    if isinstance(schema, (dict, list)):
        entries = schema.items() if isinstance(schema, dict) else enumerate(schema)
        for key, value in entries:
            if key in ("minLength", "maxLength", "minItems", "maxItems") and is_integer(value):
                found.append((value, f"the largest bound is {key} {value}, at {path}"))
            found.append(largest_count(value, f"{path}/{key}"))
    return max(found)
