"""Random JSON Schemas of the supported keywords."""

import string

NAMES = ["a", "b", "ab", "name", "é", 'say "x"', "😀", "a/b", ""]


def random_schema(rng, depth=3):
    """Return a random schema that some value satisfies."""
    leaves = [_string, _pattern, _format, _integer, _number, _enum, _types, lambda *_: {}]
    nodes = [_object, _object, _array, _any_of, _one_of, _all_of]
    kind = rng.choice(leaves + nodes * 2 if depth else leaves)
    schema = kind(rng, depth - 1)
    if rng.random() < 0.1:
        schema |= {"title": "A title", "description": "…", "default": None}
    return schema


def random_root(rng):
    """Return a random schema, perhaps with references, also of a definition to itself."""
    schema = random_schema(rng)
    if rng.random() < 0.3:
        definition = {
            "type": "object",
            "properties": {"value": random_schema(rng, 1), "next": {"$ref": "#/$defs/node"}},
            "required": ["value"],
        }
        schema = {
            "type": "object",
            "properties": {"first": {"$ref": "#/$defs/node"}, "other": schema},
            "$defs": {"node": definition},
        }
    return schema


def _bounds(rng, low, high, names, least=0):
    first = rng.randint(low, high)
    both = {names[0]: first, names[1]: first + rng.randint(least, high)}
    return {name: both[name] for name in names if rng.random() < 0.6}


def _string(rng, depth):
    return {"type": "string"} | _bounds(rng, 0, 6, ("minLength", "maxLength"))


def _pattern(rng, depth):
    parts = ["[a-z]+", r"\d{2,4}", "x|yy", r"\w", '["\\\\\n]', ".", r"\s?", "[^a-y]", r"[^\d\S]"]
    pattern = "".join(f"(?:{rng.choice(parts)})" for _ in range(rng.randint(1, 3)))
    return {"pattern": rng.choice(["", "^"]) + pattern + rng.choice(["", "$"])}


def _format(rng, depth):
    names = ["date-time", "date", "time", "duration", "email", "ipv4", "ipv6", "uuid", "hostname"]
    return {"type": "string", "format": rng.choice(names)}


def _integer(rng, depth):
    bounds = _bounds(rng, -300, 300, ("minimum", "maximum"))
    bounds |= _bounds(rng, -300, 300, ("exclusiveMinimum", "exclusiveMaximum"), 2)
    if "minimum" in bounds or "exclusiveMinimum" in bounds:
        bounds = {n: x + 700 if n.endswith("aximum") else x for n, x in bounds.items()}
    return {"type": "integer"} | bounds


def _number(rng, depth):
    low = rng.choice([rng.uniform(-2, 2), rng.uniform(-1e6, 1e6), 0.1, 0, 1e-7, -5])
    high = low + rng.choice([0.5, 1e-3, 123, 1e9])
    bounds = {
        rng.choice(["minimum", "exclusiveMinimum"]): low,
        rng.choice(["maximum", "exclusiveMaximum"]): high,
    }
    return {"type": "number"} | {name: x for name, x in bounds.items() if rng.random() < 0.6}


def _enum(rng, depth):
    values = ["red", 'say "x"', "漢\n", 1, 2.5, True, None, [1, "a"], {"b": {}}, ""]
    if rng.random() < 0.3:
        return {"const": rng.choice(values)}
    return {"enum": rng.sample(values, rng.randint(1, 5))}


def _types(rng, depth):
    names = ["string", "integer", "number", "boolean", "null", "array", "object"]
    return {"type": rng.sample(names, rng.randint(1, 3)), "minLength": 1, "maximum": 50}


def _object(rng, depth):
    names = rng.sample(NAMES, rng.randint(0, 5))
    schema = {"type": "object", "properties": {n: random_schema(rng, depth) for n in names}}
    if names and rng.random() < 0.6:
        schema["required"] = rng.sample(names, rng.randint(0, len(names)))
        if rng.random() < 0.2:
            schema["required"].append("further")
    if rng.random() < 0.5 and "further" not in schema.get("required", ()):
        schema["additionalProperties"] = rng.choice([False, True, random_schema(rng, 0)])
    return schema


def _array(rng, depth):
    schema = {"type": "array"} | _bounds(rng, 0, 3, ("minItems", "maxItems"))
    if rng.random() < 0.8:
        schema["items"] = random_schema(rng, depth)
    return schema


def _any_of(rng, depth):
    return {"anyOf": [random_schema(rng, depth) for _ in range(rng.randint(1, 3))]}


def _one_of(rng, depth):
    kinds = rng.sample(string.ascii_lowercase, rng.randint(2, 3))
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "x": random_schema(rng, depth)},
                "required": ["kind"],
            }
            for kind in kinds
        ]
    }


def _all_of(rng, depth):
    first, second = random_schema(rng, 0), random_schema(rng, depth)
    return {
        "type": "object",
        "properties": {"p": first},
        "required": ["p"],
        "allOf": [{"properties": {"q": second}, "required": ["q"]}],
        "anyOf": [{"properties": {"p": True}}, {"required": ["r"]}],
    }


_SIBLINGS = [
    {"type": "string"},
    {"type": "integer"},
    {"type": "number"},
    {"type": ["null", "integer"]},
    {"type": ["boolean", "string", "array"]},
    {"type": "object", "properties": {"a": {"type": "integer"}}},
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "null"}}},
    {"properties": {"a": {"type": "number"}}, "additionalProperties": {"type": "null"}},
    {"properties": {"b": True}, "additionalProperties": False},
    {"required": ["a"]},
    {"required": ["b"], "type": "object"},
    {"minimum": 1},
    {"maximum": 5},
    {"exclusiveMinimum": 1, "type": "number"},
    {"minLength": 2},
    {"maxLength": 3},
    {"pattern": "^a|b$"},
    {"items": {"type": "integer"}, "minItems": 1},
    {"items": {"minimum": 2}, "maxItems": 2},
    {"enum": [1, 2.0, "a", None, {"a": 1, "b": None}]},
    {"enum": [1.0, "b", {"b": None, "a": 1.0}, [1], True]},
    {"const": 1.0},
    {"const": {"b": None, "a": 1}},
    {"const": True},
    True,
    False,
]


def random_siblings(rng, depth=2):
    """Return a schema whose keywords must all hold, and may contradict each other."""
    schema = {}
    for keyword in rng.sample(["own", "own", "allOf", "anyOf", "oneOf", "$ref"], rng.randint(1, 3)):
        if keyword == "own":
            own = rng.choice(_SIBLINGS[:-2])
            schema |= own
        elif keyword == "$ref":
            schema["$ref"] = f"#/$defs/{rng.choice('xy')}"
        else:
            schema[keyword] = [
                random_siblings(rng, depth - 1) if depth else rng.choice(_SIBLINGS)
                for _ in range(rng.randint(1, 3))
            ]
    return schema


def random_siblings_root(rng):
    """Return a schema of `random_siblings` with the definitions that it refers to."""
    return random_siblings(rng) | {"$defs": {name: rng.choice(_SIBLINGS) for name in "xy"}}
