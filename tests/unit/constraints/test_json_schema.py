"""JSON Schemas: syntax trees, and what is refused."""

import json
import random
import re
import time
from decimal import Decimal

import pytest
from helpers.oracle import read

from gpt2np import InvalidArgumentError
from gpt2np.constraints.automaton import MATCHED, ByteAutomaton
from gpt2np.constraints.json_schema import schema_tree
from gpt2np.constraints.json_text import numbers
from gpt2np.generation.options import GenerationOptions


def matcher(tree):
    automaton = ByteAutomaton(tree)
    return lambda text: (
        MATCHED in automaton.readings[read(automaton, automaton.start, text.encode())]
    )


@pytest.mark.parametrize("seed", range(10))
def test_numbers_are_those_between_the_bounds(seed):
    rng = random.Random(seed)
    low = rng.randint(-1000, 1000)
    high, n_decimals = low + rng.choice([0, 3, 30, 500]), rng.randint(0, 3)
    matches = matcher(numbers(low, high, n_decimals))
    for n in range(low - 40, high + 40):
        text = f"{Decimal(n).scaleb(-n_decimals):f}"
        is_inside = low <= n <= high
        assert matches(text) == is_inside
        assert not matches(f"0{text}") and not matches(f"{text}.")
        short = text.rstrip("0").rstrip(".") if "." in text else text
        assert matches(short) == is_inside or short == "-0"


NODE = {"type": "object", "properties": {"next": {"$ref": "#"}}}
KINDS = [
    {"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]} for k in ("a", "b")
]


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "string"}, ['"a"', r'"\ud83d\ude00"', r'"\u00e9\n"'], [r'"\ud83d"', '"\n"']),
        ({"maxLength": 2}, ['"é😀"', r'"\n\""'], ['"abc"', r'"\u00e9"']),
        ({"pattern": "a|b"}, ['"xax"', '"b"'], ['"c"', '""']),
        ({"pattern": "^a|b$"}, ['"a"', '"ax"', '"xb"', '"b"'], ['"xa"', '"bx"', '""']),
        ({"pattern": r"^a\$|\^b"}, ['"a$x"', '"x^b"'], ['"a"', '"b"', '"xa$"']),
        ({"maxLength": 2**31}, ['"a"', '""'], ["1"]),
        ({"type": "array", "maxItems": 50, "items": {"maxLength": 2000}}, ['["a",""]'], ["[1]"]),
        ({"enum": [1, 2], "const": 1.0}, ["1.0"], ["2"]),
        (
            {"enum": [{"a": 1, "b": [2]}, True], "allOf": [{"enum": [{"b": [2.0], "a": 1}, 1]}]},
            ['{"a":1,"b":[2]}'],
            ["true", "1"],
        ),
        ({"pattern": r"^\d[^\w]$"}, ['"1-"'], ['"٣-"', '"1é"', '"1a"']),
        ({"type": "integer"}, ["0", "-12"], ["01", "1.0", "1e3", ""]),
        ({"type": "number"}, ["0.50", "-1e-9", "12"], [".5", "1.", "+1"]),
        ({"exclusiveMinimum": 0, "maximum": 1.5}, ["0.1", "1.5", "1"], ["0", "0.0", "1.51"]),
        ({"enum": ["a", 1, None], "type": ["string", "null"]}, ['"a"', "null"], ["1"]),
        ({"items": {"type": "null"}, "minItems": 2}, ["[null,null]"], ["[]", "[null]"]),
        (
            {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "required": ["b"]},
            ['{"b":null}', '{"a":null,"b":null}'],
            ["{}", '{"a":null}', '{"b":null,"a":null}', '{"b":null,"c":1}'],
        ),
        (
            {"properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "boolean"}},
            ['{"ab":null}', "{}"],
            ['{"ab":true}', '{"a":true}'],
        ),
        (NODE, ["{}", '{"next":' * 99 + "{}" + "}" * 99], ['{"next":{"next":{}}', '{"next":1}']),
        ({"oneOf": KINDS}, ['{"k":"a"}', '{"k":"b"}'], ['{"k":"c"}', "{}"]),
        ({"allOf": [{"minimum": 3}, {"type": "integer"}, {"maximum": 4}]}, ["3", "4"], ["5", "2"]),
        (True, ["1", "[{}]", "[" * 99 + "]" * 99], ["[1", "nul", "[" * 9 + "]" * 8]),
        (
            {"type": "integer", "minimum": 1, "anyOf": [{"type": "string"}, {"maximum": 5}]},
            ["1", "5"],
            ["60.079564", "0", "6", '"a"'],
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "anyOf": [{"required": ["a"]}, {"type": "null"}],
            },
            ['{"a":1}'],
            ["{}", "null"],
        ),
    ],
)
def test_texts(schema, valid, invalid):
    matches = matcher(schema_tree(schema))
    assert [text for text in valid if not matches(text)] == []
    assert [text for text in invalid if matches(text)] == []


@pytest.mark.parametrize("keyword", ["not", "prefixItems", "multipleOf", "minimumm"])
def test_unsupported_keyword_is_named(keyword):
    message = re.escape(f"#/properties/a~1b: '{keyword}' is not supported")
    with pytest.raises(InvalidArgumentError, match=message):
        schema_tree({"properties": {"a/b": {keyword: True}}})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strin"}, "type is 'strin'; it must be one of string"),
        ({"minLength": "3"}, "minLength is '3'; it must be of type integer"),
        ({"items": {"minItems": 10_001}}, "at #/items: minItems is 10001; it must be at most"),
        ({"anyOf": [{"$ref": "#"}, {}]}, r"at #/anyOf/0: \$ref '#' leads to itself"),
        ({"minimum": 1e308}, "minimum is 1e.308; it must be less than 1e100"),
        ({"format": "phone"}, "format 'phone' is not supported; there are date-time"),
        ({"$ref": "http://x/y"}, "'http://x/y' leads nowhere; only references such as"),
        ({"$ref": "#/$defs/a"}, "leads nowhere"),
        ({"items": 1}, "json_schema, at #/items: 1 is no schema"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "0 and 1 may both be; use anyOf"),
        ({"oneOf": [{"enum": [*range(i, i + 100)]} for i in range(0, 9900, 100)]}, "too large"),
        ({"oneOf": [{"properties": {"p": {"enum": [*range(300_000)]}}}]}, "too large"),
        ({"pattern": "^a+$", "maxLength": 2}, "put the length into the pattern"),
        ({"enum": [1], "minimum": 0}, "minimum beside enum"),
        ({"pattern": "(?=a)"}, r"at offset 0: \(\?= is not supported"),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "two values of pattern"),
    ],
)
def test_what_is_refused(schema, message):
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        schema_tree(schema)
    assert "\n" not in str(caught.value)


CONTRADICTIONS = [
    {"type": "object", "minimum": 1, "allOf": [{"type": "string"}]},
    {"type": "integer", "$ref": "#/$defs/text", "$defs": {"text": {"type": "string"}}},
    {"type": "null", "anyOf": [{"type": "string"}, {"enum": [1, 2]}]},
    {"const": 1, "oneOf": [{"const": 2}, {"type": "string"}]},
]


@pytest.mark.parametrize("schema", CONTRADICTIONS)
def test_keywords_without_a_common_type_no_text_matches(lm, schema):
    with pytest.raises(InvalidArgumentError, match="no text matches the JSON Schema"):
        lm.generate("It was", json_schema=schema)


def test_the_option_takes_a_dict_a_text_and_a_file(lm, tmp_path):
    schema = {"type": "object", "properties": {"é": {"type": "integer"}}, "required": ["é"]}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema), encoding="utf-8")
    forms = [schema, json.dumps(schema), file, str(file)]
    assert len({GenerationOptions(json_schema=form).json_schema for form in forms}) == 1
    completion = lm.generate("It was", json_schema=schema, seed=1, max_new_tokens=12)
    assert isinstance(json.loads(completion.text)["é"], int)
    stream = lm.stream("It was", json_schema=file, seed=1, max_new_tokens=12)
    assert "".join(stream) == completion.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"json_schema": "nowhere.json"}, "nowhere.json"),
        ({"json_schema": {"const": float("nan")}}, "json_schema is not JSON"),
        ({"json_schema": {"const": "\ud800"}}, "json_schema is not JSON"),
        ({"json_schema": {"title": "x" * 100_001}}, "json_schema has 100,"),
        ({"json_schema": 5}, "json_schema is 5; it must be a JSON Schema"),
        ({"json_schema": {}, "regex": "a"}, "contradict each other"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        GenerationOptions(**options)


TREE = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/b"}, "n": {"type": "null"}},
    "required": ["a"],
    "$defs": {"b": {"anyOf": [{"$ref": "#"}, {"type": "array", "items": {"$ref": "#/$defs/b"}}]}},
}


def test_where_a_schema_contains_itself_the_shortest_text_is_found(lm):
    completion = lm.generate("It was", json_schema=TREE, seed=1, max_new_tokens=8)
    assert json.loads(completion.text)["a"] is not None
    endless = {"type": "array", "items": {"$ref": "#"}, "minItems": 1}
    with pytest.raises(InvalidArgumentError, match="no text matches the JSON Schema"):
        lm.generate("It was", json_schema=endless)


def test_many_optional_properties_take_no_quadratic_time():
    tree = schema_tree({"properties": {f"p{i}": {"type": "null"} for i in range(1500)}})
    started = time.process_time()
    ByteAutomaton(tree)
    assert time.process_time() - started < 2  # 21 s where the whole came before its parts
