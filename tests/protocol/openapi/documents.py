"""Documents of OpenAPI for tests."""

from typing import Any

PARENT = {"$ref": "#/components/schemas/Part"}

SHOP: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Shop", "version": "7", "description": "Sells things."},
    "servers": [{"url": "https://{region}.shop.example/v1", "variables": {"region": {"default": "eu"}}}],
    "paths": {
        "/items": {
            "parameters": [{"$ref": "#/components/parameters/Page"}],
            "get": {
                "operationId": "items/list",
                "summary": "List items",
                "parameters": [
                    {"name": "tag", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
                    {"name": "filter", "in": "query", "style": "deepObject", "schema": {"type": "object"}},
                    {"name": "key", "in": "query", "schema": {"type": "string"}},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
                    {"name": "Authorization", "in": "header", "required": True, "schema": {"type": "string"}},
                ],
                "responses": {"200": {"description": "ok"}},
            },
            "post": {
                "operationId": "items/create",
                "description": "Adds an item.",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Item"}}},
                },
                "callbacks": {"sold": {}},
                "responses": {},
            },
        },
        "/items/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
            "get": {"operationId": "items/get", "responses": {}},
            "put": {
                "operationId": "items/replace",
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Item"}}}},
            },
            "delete": {"operationId": "items/get", "deprecated": True},
            "head": {"operationId": "items/head"},
        },
        "/items/{id}/photo": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}],
            "post": {"requestBody": {"content": {"multipart/form-data": {"schema": {}}}}},
        },
        "/parts": {
            "post": {
                "operationId": "addPart",
                "requestBody": {
                    "content": {"application/json": {"schema": {"type": "array", "items": PARENT}}},
                    "description": "Parts with parts.",
                },
            }
        },
        "/basket": {"get": {"parameters": [{"name": "sid", "in": "cookie", "required": True, "schema": {}}]}},
        "/gone": {"get": {"parameters": [{"$ref": "#/components/parameters/Missing"}]}},
        "/far": {"get": {"parameters": [{"$ref": "other.yaml#/x"}]}},
        "/x/../y": {"get": {}},
    },
    "components": {
        "parameters": {"Page": {"name": "page", "in": "query", "schema": {"type": "integer", "nullable": True}}},
        "securitySchemes": {"key": {"type": "apiKey", "in": "query", "name": "key"}},
        "schemas": {
            "Item": {
                "type": "object",
                "required": ["id", "name"],
                "properties": {
                    "id": {"type": "string"},
                    "name": {"type": "string", "minLength": 1, "example": "lamp"},
                    "price": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
                    "made_at": {"type": "string", "readOnly": True},
                },
            },
            "Part": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "parts": {"type": "array", "items": PARENT}},
            },
        },
    },
}

PETS: dict[str, Any] = {
    "swagger": "2.0",
    "info": {"title": "Pets", "version": "1"},
    "host": "pets.example",
    "basePath": "/api",
    "schemes": ["http", "https"],
    "paths": {
        "/pets/{id}": {
            "put": {
                "operationId": "putPet",
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "type": "string"},
                    {"name": "tags", "in": "query", "type": "array", "items": {"type": "string"}},
                    {
                        "name": "colours", "in": "query", "type": "array", "items": {"type": "string"},
                        "collectionFormat": "multi",
                    },
                    {"name": "sizes", "in": "query", "type": "array", "collectionFormat": "tsv"},
                    {"name": "forms", "in": "query", "type": "array", "collectionFormat": "none such"},
                    {"name": "pet", "in": "body", "required": True, "schema": {"$ref": "#/definitions/Pet"}},
                ],
                "responses": {},
            }
        },
        "/pets/{id}/photo": {
            "post": {
                "parameters": [
                    {"name": "id", "in": "path", "required": True, "type": "string"},
                    {"name": "photo", "in": "formData", "type": "file"},
                ]
            }
        },
    },
    "definitions": {"Pet": {"type": "object", "properties": {"name": {"type": "string"}}}},
}  # fmt: skip
