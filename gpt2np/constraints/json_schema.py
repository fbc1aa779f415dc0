"""Compilation of JSON Schemas (draft 2020-12) to syntax trees: exactly, or not at all.

Every text that the tree matches is valid. An unsupported keyword is an error, because a text that
ignores the keyword could be invalid. Some valid texts are never generated:

- Texts with white space, or with properties in another order than in `properties`.
- Objects with further properties, except if the schema has neither `properties` nor `required`.
- Numbers with more than MAX_DIGITS digits before or after the point. If the schema has bounds, this
  limit applies to all digits together.
- Without `type`: values of types that no keyword of the schema is about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from itertools import chain, combinations, product, starmap
from typing import Any
from urllib.parse import unquote

from gpt2np.constraints import json_text
from gpt2np.constraints.json_text import NOTHING, either
from gpt2np.constraints.syntax import ANYTHING, Alternation, Repetition, Tree, WorkCounter, parse
from gpt2np.errors import InvalidArgumentError, short_repr

_SUBSCHEMA = 300  # units of work, each time that references lead to it
_CONSTANT = 20  # units of work, each time that an enum is compiled or compared
_MAX_LEAST = 10_000  # characters or items that a value must have: a context holds fewer

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

_KEYWORDS: dict[str, str | None] = {  # supported keyword → type of its value
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), "integer"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), "number"),
    **dict.fromkeys(("pattern", "$ref", "format"), "string"),
    **dict.fromkeys(("enum", "allOf", "anyOf", "oneOf", "required"), "array"),
    "properties": "object",
    **dict.fromkeys(("type", "const", "items", "additionalProperties"), None),
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
    """A subschema and its JSON pointer."""

    schema: Any
    path: str

    def __getitem__(self, key: str | int) -> _Part:
        escaped = str(key).replace("~", "~0").replace("/", "~1")
        return _Part(self.schema[key], f"{self.path}/{escaped}")

    def all(self, keyword: str) -> list[_Part]:
        """Return the entries of a list."""
        return [self[keyword][i] for i in range(len(self.schema.get(keyword, ())))]


def schema_tree(schema: object) -> Tree:
    """Compile a JSON Schema to a tree, which contains itself if the schema does.

    Raises InvalidArgumentError if the schema is malformed, not supported or too large.
    """
    try:
        return _Compiler(_Part(schema, "#")).tree
    except RecursionError as error:
        raise _error("#", "the schema nests too deep") from error


class _Compiler:
    """A compiler of one schema, `root`, to which its references point."""

    def __init__(self, root: _Part) -> None:
        self._root = root
        self._work = WorkCounter()
        self._trees: dict[frozenset[str], Tree] = {}  # paths of schemas that must all hold → tree
        self._open: list[str] = []  # paths of the schemas whose alternatives are being computed
        self.tree = self._all([root])

    def _all(self, parts: Sequence[_Part]) -> Tree:
        """Return a tree of the values that are valid for all parts."""
        unique = {part.path: part for part in parts}
        key, path = frozenset(unique), parts[0].path
        if key not in self._trees:
            branches: list[Tree] = []
            self._trees[key] = Alternation(branches)  # first, because it may contain itself
            alternatives = self._all_of([*map(self._alternatives, unique.values())], path)
            branches += [self._tree(keywords, path) for keywords in alternatives]
        return self._trees[key]

    def _all_of(self, factors: Sequence[Sequence[_Keywords]], path: str) -> list[_Keywords]:
        """Return the alternatives of a conjunction of alternatives."""
        self._work.add(_SUBSCHEMA * math.prod(map(len, factors)))
        return [reduce(partial(_merge, path), combined) for combined in product(*factors)]

    def _alternatives(self, part: _Part) -> list[_Keywords]:
        """Return schemas without references and alternatives, which together equal a part."""
        schema = part.schema
        factors = [[_own_keywords(part)]]
        if isinstance(schema, bool):
            return factors[0] if schema else []
        self._open.append(part.path)
        if "$ref" in schema:
            target = self._target(part)
            if target.path in self._open:
                text = f"$ref {short_repr(schema['$ref'])} leads to itself, without a value between"
                raise _error(part.path, text + "; put it into items or properties")
            factors.append(self._alternatives(target))
        factors += map(self._alternatives, part.all("allOf"))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                branches = [self._alternatives(branch) for branch in part.all(keyword)]
                if keyword == "oneOf":
                    self._check_disjoint(branches, part.path)
                factors.append([*chain.from_iterable(branches)])
        self._open.pop()
        return self._all_of(factors, part.path)

    def _target(self, part: _Part) -> _Part:
        """Return the subschema to which the reference of a part leads."""
        reference = unquote(part.schema["$ref"])
        target = self._root
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
        return target

    def _check_disjoint(self, branches: Sequence[Sequence[_Keywords]], path: str) -> None:
        for (i, first), (j, second) in combinations(enumerate(branches), 2):
            if not all(starmap(self._are_disjoint, product(first, second))):
                raise _error(
                    path,
                    f"oneOf is supported where no value is valid for two branches; {i} and {j} "
                    "may both be; use anyOf, or a required property with different constants",
                )

    def _are_disjoint(self, a: _Keywords, b: _Keywords) -> bool:
        """Return whether certainly no value is valid for both, also by a required property."""
        n_constants = len([*a.get("enum", ()), *b.get("enum", ())])
        self._work.add(_SUBSCHEMA + _CONSTANT * n_constants)
        if _differ(a, b) or _types(a) & _types(b) != {"object"}:
            return _differ(a, b)
        names = {*a.get("required", ())} & {*b.get("required", ())}
        pairs = chain.from_iterable(product(_property(a, n), _property(b, n)) for n in names)
        return any(_differ(*map(_own_keywords, pair)) for pair in pairs)

    def _tree(self, keywords: _Keywords, path: str) -> Tree:
        """Return a tree for a schema without references and alternatives."""
        if "enum" in keywords:
            self._work.add(_CONSTANT * len(keywords["enum"]))
            return _enumeration(keywords, path)
        if not keywords:
            return json_text.ANY_VALUE
        implied = (_TYPES[_TYPE_OF[keyword]] for keyword in keywords.keys() - {"type"})
        types = keywords["type"] if "type" in keywords else set().union(*implied)
        trees: dict[str, Callable[[], Tree]] = {
            "string": lambda: _string(keywords, path),
            "integer": lambda: _number(keywords, "number" not in types),  # also of "number"
            "boolean": lambda: json_text.BOOLEAN,
            "null": lambda: json_text.NULL,
            "array": lambda: self._array(keywords),
            "object": lambda: self._object(keywords),
        }
        return either([tree() for name, tree in trees.items() if name in types])

    def _array(self, keywords: _Keywords) -> Tree:
        least, most = keywords.get("minItems", 0), keywords.get("maxItems")
        if most is not None and least > most:
            return NOTHING
        item = self._all(keywords["items"]) if "items" in keywords else json_text.ANY_VALUE
        return json_text.array(item, least, most)

    def _object(self, keywords: _Keywords) -> Tree:
        properties, required = keywords.get("properties", {}), keywords.get("required", ())
        names = dict.fromkeys((*properties, *required))
        value: Tree = NOTHING
        if "additionalProperties" in keywords:
            value = self._all(keywords["additionalProperties"])
        elif not names or len(names) > len(properties):
            value = json_text.ANY_VALUE
        values = {name: self._all(parts) for name, parts in properties.items()}
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
        if keyword in _ANNOTATIONS or (keyword == "$id" and part.path == "#"):
            continue
        if keyword == "uniqueItems" and value is False:
            continue
        if keyword not in _KEYWORDS:
            raise _error(part.path, f"{short_repr(keyword)} is not supported; omit it")
        if expected := _wrong(keyword, value):
            raise _error(part.path, f"{keyword} is {short_repr(value)}; it must be {expected}")


def _wrong(keyword: str, value: Any) -> str:
    """Return what the value of a keyword must be, if it is not."""
    expected = _KEYWORDS[keyword]
    if expected and _type(value) not in _TYPES[expected]:
        return f"of type {expected}"
    if expected == "number" and not abs(value) < 1e100:
        return "less than 1e100 in size"
    if expected == "integer" and value < 0:
        return "at least 0"
    if keyword in ("minLength", "minItems") and value > _MAX_LEAST:
        return f"at most {_MAX_LEAST:,}"
    if expected == "array" and keyword != "required" and not value:
        return "a list that is not empty"
    names = _as_list(value) if keyword in ("type", "required") else []
    if not all(isinstance(name, str) for name in names):
        return "a list of texts" if keyword == "required" else "a text or a list of texts"
    if keyword == "type" and not (names and set(names) <= _TYPES.keys()):
        return f"one of {', '.join(_TYPES)}, or a list of them"
    return ""


def _own_keywords(part: _Part) -> _Keywords:
    """Check a part, and return its keywords without its references and alternatives."""
    if isinstance(part.schema, bool):
        return {}
    _check(part)
    keywords = {name: value for name, value in part.schema.items() if name in _TYPE_OF}
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
    values = {*map(_canonical, second)}
    return [value for value in first if _canonical(value) in values]


def _canonical(value: Any) -> object:
    """Return what is the same for equal JSON values: 1 = 1.0 ≠ true, and keys have no order."""
    if isinstance(value, dict):
        return frozenset((key, _canonical(entry)) for key, entry in value.items())
    if isinstance(value, list):
        return tuple(map(_canonical, value))
    return (bool, value) if isinstance(value, bool) else value


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


def _differ(a: _Keywords, b: _Keywords) -> bool:
    """Return whether two schemas have no type or no constant in common."""
    constants = [keywords["enum"] for keywords in (a, b) if "enum" in keywords]
    return not _types(a) & _types(b) or (len(constants) == 2 and not _common(*constants))


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
    if keywords.get("format", "date") not in _FORMATS:
        name = short_repr(keywords["format"])
        raise _error(path, f"format {name} is not supported; there are {', '.join(_FORMATS)}")
    if "format" in keywords:
        return json_text.string(parse(_FORMATS[keywords["format"]]))
    try:
        return json_text.string(parse(keywords["pattern"], is_portable=True))
    except InvalidArgumentError as error:
        raise _error(path, str(error)) from error


def _number(keywords: _Keywords, is_whole: bool) -> Tree:
    bounds = {n: Fraction(str(x)) for n, x in keywords.items() if _TYPE_OF.get(n) == "number"}
    if not bounds:
        return json_text.ANY_INTEGER if is_whole else json_text.ANY_NUMBER
    n_digits = max(len(str(abs(int(bound)))) for bound in (*bounds.values(), Fraction(0)))
    if len({name[-6:] for name in bounds}) == 1:  # only minima, or only maxima
        n_digits = max(n_digits, json_text.MAX_DIGITS if is_whole else 9)
    n_decimals = 0 if is_whole else max(json_text.MAX_DIGITS - n_digits, 0)
    limit = Fraction(10 ** (n_digits + n_decimals) - 1)
    of = {name: bound * 10**n_decimals for name, bound in bounds.items()}.get
    low = max(math.ceil(of("minimum", -limit)), math.floor(of("exclusiveMinimum", -limit - 1)) + 1)
    high = min(math.floor(of("maximum", limit)), math.ceil(of("exclusiveMaximum", limit + 1)) - 1)
    return json_text.numbers(low, high, n_decimals)
