"""JSON Schema of rule documents, and the names of their fields."""

from __future__ import annotations

from typing import Any

from streambroker_core.wire.encoding.canonical import JsonObject

_DURATION: JsonObject = {
    "description": "seconds, or a text with a unit",
    "oneOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "minLength": 2, "pattern": r"\d"},
    ],
}
_CONDITION: JsonObject = {
    "oneOf": [
        {"type": "string", "minLength": 1, "maxLength": 2048},
        {"type": "object", "additionalProperties": False, "required": ["function"],
         "properties": {"function": {"type": "string", "minLength": 1}}},
        *(
            {"type": "object", "additionalProperties": False, "required": [word],
             "properties": {word: {"type": "array", "minItems": 1,
                                   "items": {"$ref": "#/$defs/condition"}}}}
            for word in ("all", "any")
        ),
    ]
}  # fmt: skip
_TIMES: Any = {
    "type": "object",
    "additionalProperties": False,
    "required": ["from"],
    "properties": {
        "from": {"type": "integer", "minimum": 0, "maximum": 1000},
        "to": {"type": "integer", "minimum": 1, "maximum": 1000},
        "inner": {"enum": ["relaxed", "strict", "combinations"]},
        "gap": {"$ref": "#/$defs/duration"},
        "gapBetween": {"$ref": "#/$defs/duration"},
    },
}
_STAGE: Any = {
    "type": "object",
    "additionalProperties": False,
    "oneOf": [{"required": ["name"]}, {"required": ["group"]}],
    "dependentRequired": {"or": ["group"]},
    "properties": {
        "name": {"type": "string", "minLength": 1, "pattern": "^[^:]*$"},
        "group": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/stage"}},
        "or": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/stage"}},
        },
        "join": {
            "enum": [
                "begin", "next", "followed_by", "followed_by_any", "not_next", "not_followed_by",
            ]
        },
        "where": {"$ref": "#/$defs/condition"},
        "times": {
            "oneOf": [
                {"type": "integer", "minimum": 1, "maximum": 1000},
                _TIMES,
            ]
        },
        "optional": {"type": "boolean"},
        "greedy": {"type": "boolean"},
        "until": {"$ref": "#/$defs/condition"},
        "within": {"$ref": "#/$defs/duration"},
        "withinPrevious": {"$ref": "#/$defs/duration"},
    },
}  # fmt: skip
_PATTERN: Any = {
    "type": "object",
    "additionalProperties": False,
    "required": ["stages"],
    "properties": {
        "stages": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/stage"}},
        "within": {"$ref": "#/$defs/duration"},
        "skip": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "strategy": {
                    "enum": [
                        "no_skip", "skip_to_next", "skip_past_last", "skip_to_first",
                        "skip_to_last",
                    ]
                },
                "stage": {"type": "string"},
                "throwOnMiss": {"type": "boolean"},
            },
        },
    },
}  # fmt: skip

RULE_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "PatternProcessor",
    "description": "A rule of dynamic patterns",
    "type": "object",
    "additionalProperties": False,
    "required": ["id", "version", "pattern"],
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 253},
        "version": {"type": "integer", "minimum": 0},
        "pattern": {"$ref": "#/$defs/pattern"},
        "key": {
            "oneOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}},
            ]
        },
        "scheduled": {
            "oneOf": [{"type": "string", "format": "date-time"}, {"type": "integer"}],
        },
        "function": {"type": "string", "minLength": 1},
        "onError": {"enum": ["fail", "disable"]},
        "keepMatches": {"type": "boolean"},
        "limits": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "runs": {"type": ["integer", "null"], "minimum": 1},
                "policy": {"enum": ["drop_oldest", "refuse", "fail"]},
            },
        },
        "numbered": {"type": "boolean"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "$defs": {
        "condition": _CONDITION, "duration": _DURATION, "pattern": _PATTERN, "stage": _STAGE,
    },
}  # fmt: skip
"""JSON Schema draft 2020-12. `read_rule` refuses everything that it refuses, and more."""

RULE_FIELDS = tuple(RULE_SCHEMA["properties"])
PATTERN_FIELDS = tuple(_PATTERN["properties"])
STAGE_FIELDS = tuple(_STAGE["properties"])
TIMES_FIELDS = tuple(_TIMES["properties"])
