"""Schemas of streams in Avro, Protocol Buffers and JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streambroker_core.errors import SchemaError
from streambroker_core.model.schema import parse_ddl
from streambroker_core.model.schema_texts import to_avro, to_json_schema, to_protobuf

NESTED = parse_ddl(
    "id bigint, at timestamp, day date, cost decimal(10,2), tags array<string>,"
    " shares map<string,double>, place struct<x:int,inner:struct<`y`:float>>,"
    " name string collate utf8_lcase"
)


def test_an_avro_record_has_nullable_fields_and_named_inner_records() -> None:
    record = json.loads(to_avro(NESTED, "Trade"))
    types = {field["name"]: field["type"][1] for field in record["fields"]}

    assert (record["type"], record["name"]) == ("record", "Trade")
    assert all(field["type"][0] == "null" for field in record["fields"])
    assert all(field["default"] is None for field in record["fields"])
    assert types["id"] == "long"
    assert types["at"] == {"type": "long", "logicalType": "timestamp-micros"}
    assert types["cost"]["precision"], types["cost"]["scale"] == (10, 2)
    assert types["tags"] == {"type": "array", "items": ["null", "string"]}
    assert types["shares"] == {"type": "map", "values": ["null", "double"]}
    assert types["name"] == "string"
    inner = types["place"]["fields"][1]["type"][1]
    assert (types["place"]["name"], inner["name"]) == ("Trade_place", "Trade_place_inner")


def test_a_message_of_protocol_buffers_numbers_its_fields_by_their_columns() -> None:
    columns = parse_ddl(
        "id bigint, at timestamp, tags array<string>, shares map<int,double>,"
        " place struct<x:int,inner_part:struct<y:float>>"
    )

    assert to_protobuf(columns, "Trade") == (
        'syntax = "proto3";\n'
        "\n"
        'import "google/protobuf/timestamp.proto";\n'
        "\n"
        "message Trade {\n"
        "  optional int64 id = 1;\n"
        "  optional google.protobuf.Timestamp at = 2;\n"
        "  repeated string tags = 3;\n"
        "  map<int32, double> shares = 4;\n"
        "  message Place {\n"
        "    optional int32 x = 1;\n"
        "    message InnerPart {\n"
        "      optional float y = 1;\n"
        "    }\n"
        "    optional InnerPart inner_part = 2;\n"
        "  }\n"
        "  optional Place place = 5;\n"
        "}\n"
    )


def test_a_json_schema_accepts_null_and_limits_integers() -> None:
    schema = json.loads(to_json_schema(NESTED, "Trade"))
    properties: dict[str, Any] = schema["properties"]

    assert schema["title"] == "Trade"
    assert properties["id"]["type"] == ["integer", "null"]
    assert properties["id"]["maximum"] == (1 << 63) - 1
    assert properties["day"] == {"type": ["string", "null"], "format": "date"}
    assert properties["tags"]["items"] == {"type": ["string", "null"]}
    assert properties["place"]["properties"]["inner"]["properties"]["y"]["type"][0] == "number"


@pytest.mark.parametrize(
    ("write", "ddl", "problem"),
    [
        (to_avro, "`odd name` int", "`odd name` is no name in Avro"),
        (to_avro, "a variant", "Avro has no type variant"),
        (to_avro, "a map<int,int>", "Avro has no type map<int,int>"),
        (to_avro, "a struct<b:interval day to second,c:int>", "no type interval day to second"),
        (to_protobuf, "a array<array<int>>", "Protocol Buffers has no type array<int>"),
        (to_protobuf, "a map<double,int>", "no type map<double,int>"),
        (to_protobuf, "a decimal(10,2)", r"no type decimal\(10,2\)"),
        (to_json_schema, "a geometry(any)", r"JSON has no type geometry\(any\)"),
    ],
)
def test_what_a_language_lacks_is_an_error(write: Any, ddl: str, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        write(parse_ddl(ddl), "Trade")
