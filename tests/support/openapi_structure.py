"""A schema of the OpenAPI 3.1 keywords that the contract uses; closed, so that a misspelt keyword fails."""

from typing import Any


def _object(required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": required | optional,
        "additionalProperties": False,
    }


def _map(value: Any, names: str = "^") -> dict[str, Any]:
    return {"type": "object", "minProperties": 1, "patternProperties": {names: value}, "additionalProperties": False}


def _or_reference(value: Any) -> dict[str, Any]:
    return {"if": {"required": ["$ref"]}, "then": _object({"$ref": TEXT}, {}), "else": value}


TEXT = {"type": "string", "minLength": 1}
SCHEMA = {"type": "object"}
SECURITY = {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "array"}}}
MEDIA_TYPES = _map(
    _object(
        {"schema": SCHEMA, "examples": _map(_object({"value": True}, {"summary": TEXT}))},
        {"x-messages": _map(_object({"$ref": TEXT}, {}))},
    ),
    "^[a-z]+/[a-z-]+",
)
HEADER = _object({"description": TEXT, "schema": SCHEMA, "example": True}, {"required": {"type": "boolean"}})
PARAMETER = _object(
    {"name": TEXT, "in": {"enum": ["path", "query", "header"]}, "schema": SCHEMA, "example": True},
    {"description": TEXT, "required": {"const": True}, "style": {"const": "form"}, "explode": {"type": "boolean"}},
) | {"if": {"properties": {"in": {"const": "path"}}}, "then": {"required": ["required"]}}
PARAMETERS = {"type": "array", "items": _or_reference(PARAMETER)}
RESPONSE = _object({"description": TEXT, "content": MEDIA_TYPES}, {"headers": _map(_or_reference(HEADER))})
OPERATION = _object(
    {
        "operationId": TEXT,
        "tags": {
            "type": "array",
            "items": {
                "enum": [
                    "orders",
                    "risk",
                    "events",
                    "streams",
                    "market",
                    "dashboard",
                    "kill switch",
                    "back office",
                    "pdca",
                    "operations",
                    "account",
                    "documentation",
                ]
            },
        },
        "summary": TEXT,
        "responses": _map(_or_reference(RESPONSE), "^[1-5][0-9]{2}$"),
    },
    {
        "description": TEXT,
        "security": SECURITY,
        "parameters": PARAMETERS,
        "requestBody": _object({"content": MEDIA_TYPES}, {"required": {"const": True}, "description": TEXT}),
    },
)
SERVERS = {"type": "array", "items": _object({"url": TEXT, "description": TEXT}, {})}
STRUCTURE = _object(
    {
        "openapi": {"const": "3.1.0"},
        "jsonSchemaDialect": {"const": "https://json-schema.org/draft/2020-12/schema"},
        "info": _object(
            {
                "title": TEXT,
                "version": TEXT,
                "summary": TEXT,
                "license": _object({"name": TEXT, "identifier": TEXT}, {}),
                "description": TEXT,
            },
            {},
        ),
        "servers": SERVERS,
        "security": SECURITY,
        "tags": {"type": "array", "items": _object({"name": TEXT, "description": TEXT}, {})},
        "paths": _map(
            _object(
                {},
                {
                    "servers": SERVERS,
                    "parameters": PARAMETERS,
                    "get": OPERATION,
                    "post": OPERATION,
                    "patch": OPERATION,
                    "put": OPERATION,
                    "delete": OPERATION,
                },
            ),
            "^/",
        ),
        "components": _object(
            {
                "securitySchemes": _map(SCHEMA),
                "parameters": _map(PARAMETER),
                "headers": _map(HEADER),
                "responses": _map(RESPONSE),
                "schemas": _map(SCHEMA),
            },
            {},
        ),
    },
    {},
)
