"""JSON Schema of the three kinds of spec, for completion, hover texts and checks in an editor.

    # yaml-language-server: $schema=../../docs/schema/kernel.json

as the first line of a spec names the schema that `layoutdsl schema --out docs/schema` wrote. What a schema cannot say
(digits, values, proofs) is for `layoutdsl lint`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from layoutdsl.model import INHERITED, KINDS, Param

# Draft 7 and not 2020-12, which pydantic writes: it is the only one that all YAML servers read without reserve.
DRAFT = "http://json-schema.org/draft-07/schema#"

_ABOUT = {
    "checkpoint": "How a checkpoint's tensors are stored.",
    "kernel": "How a kernel wants its tensors, and which matrices it takes.",
    "module": "Matrices that share axes.",
}
# Hover texts of keys that the models leave undescribed, by the model's title; "" stands for all of them.
_SAID = {
    "": {
        "version": "version of the spec language, quoted",
        "doc": "what this is, in a sentence",
        "params": "parameter -> its values or its type; a list is short for `values: [...]`",
        "checkpoint": "the format's name, which is also that of the file",
        "kernel": "the format's name, which is also that of the file",
        "module": "the module's name, which is also that of the file",
        "tensors": "tensor -> where each of its elements stands, over the axes n (outputs) and k (inputs)",
        "matrices": "matrix -> which axes it lies on",
        "role": "what the tensor is for; tensors of two formats meet by their role",
        "dtype": "storage type, named as torch names it; of several, the first is written",
        "cases": "what the tensor states anew where a condition holds; the first that holds counts",
        "default": "the value where none is given and no config states one",
    },
    "Matrix": {"n": "the module's axis of its outputs", "k": "the module's axis of its inputs"},
    "Tile": {"n": "outputs in a tile", "k": "inputs in a tile"},
}


def schema(kind: str) -> dict[str, Any]:
    """The schema of one kind of spec: checkpoint, kernel or module."""
    raw = KINDS[kind].model_json_schema(schema_generator=_Generator)
    definitions = raw.pop("$defs", {})
    if kind == "kernel":
        raw = _or_based(raw)
    made = {"$schema": DRAFT, **_plain(raw), "title": f"layoutdsl {kind} spec", "description": _ABOUT[kind]}
    return {**made, "definitions": {name: _plain(definition) for name, definition in sorted(definitions.items())}}


def text(kind: str) -> str:
    """The schema as it stands in docs/schema."""
    return json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"


def write(folder: Path) -> list[Path]:
    """Write one file per kind; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{kind}.json" for kind in KINDS]
    for path in paths:
        path.write_text(text(path.stem), encoding="utf-8", newline="\n")
    return paths


def _or_based(raw: dict[str, Any]) -> dict[str, Any]:
    """Of the keys that every kernel needs, a build with a base states only those that it cannot have from there."""
    always = [key for key in raw["required"] if key not in INHERITED]
    alone = [key for key in raw["required"] if key in INHERITED]
    return {**raw, "required": always, "if": {"required": ["base"]}, "else": {"required": alone}}


class _Generator(GenerateJsonSchema):
    def generate_inner(self, schema: Any) -> Any:
        inner = schema.get("schema")
        if schema["type"] == "function-before" and isinstance(inner, dict) and inner.get("cls") is Param:
            return {"anyOf": [{"type": "array", "items": {"type": ["boolean", "integer", "string"]}, "minItems": 1},
                              super().generate_inner(inner)]}
        return super().generate_inner(schema)


def _plain(node: Any) -> Any:
    """One node in draft 7, without the nulls that our reader refuses anyway, open to keys that begin with `x-`."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: value for key, value in node.items() if (key, value) != ("default", None)}
    options = [option for option in node.pop("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        node = {**options[0], **node}
    elif options:
        node["anyOf"] = options
    if names := node.pop("propertyNames", {}).get("enum"):
        node["properties"] = dict.fromkeys(names, node["additionalProperties"])
        node["additionalProperties"] = False
    for name, value in node.get("properties", {}).items():
        said = {**_SAID[""], **_SAID.get(node.get("title", ""), {})}
        if "description" not in value and "$ref" not in value and name in said:
            value["description"] = said[name]
    plain = {key: _mapped(key, value) for key, value in node.items() if key != "$ref"}
    if "$ref" in node:
        # Draft 7 ignores what stands beside a `$ref`.
        there = {"$ref": node["$ref"].replace("#/$defs/", "#/definitions/")}
        plain = {**plain, "allOf": [there]} if plain else there
    if plain.get("type") == "object":
        plain["patternProperties"] = {"^x-": {"description": "free for your own use"}}
    return plain


def _mapped(key: str, value: Any) -> Any:
    if key == "properties":
        return {name: _plain(item) for name, item in value.items()}
    return value if key in ("default", "enum", "const", "required") else _plain(value)
