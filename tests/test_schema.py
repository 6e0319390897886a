"""The JSON Schemas in docs/schema: up to date, true to the shipped specs, and of use in an editor."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from layoutdsl import schema
from layoutdsl.library import kind_of, read_spec, shipped
from layoutdsl.model import KINDS
from layoutdsl.source import read_file

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "schema"
SPECS = sorted(path for kind in KINDS for path in (shipped() / kind).rglob("*.yaml"))
VALIDATORS = {kind: Draft7Validator(schema.schema(kind)) for kind in KINDS}


def name(path: Path) -> str:
    return path.relative_to(shipped()).as_posix()


def nodes(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping in a schema that is itself a schema, with where it stands."""
    if isinstance(node, list):
        for item in node:
            yield from nodes(item, path)
    elif isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            inner = value.values() if key in ("properties", "patternProperties", "definitions") else [value]
            labels = value if key in ("properties", "patternProperties", "definitions") else [key]
            for label, item in zip(labels, inner, strict=True):
                if key not in ("default", "enum", "const"):
                    yield from nodes(item, f"{path}/{label}")


@pytest.mark.parametrize("kind", KINDS)
def test_written_schemas_are_up_to_date(kind: str) -> None:
    written = (DOCS / f"{kind}.json").read_text(encoding="utf-8")
    assert written == schema.text(kind), "run `layoutdsl schema --out docs/schema`"


def test_no_schema_too_many() -> None:
    assert sorted(path.name for path in DOCS.iterdir()) == sorted(f"{kind}.json" for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_of_the_draft_they_name(kind: str) -> None:
    made = schema.schema(kind)
    assert made["$schema"] == Draft7Validator.META_SCHEMA["$id"] == "http://json-schema.org/draft-07/schema#"
    Draft7Validator.check_schema(made)
    # What draft 7 does not know, or would ignore.
    text = json.dumps(made)
    assert not any(word in text for word in ("$defs", "prefixItems", "propertyNames", '"null"', "$id"))
    assert all(set(node) == {"$ref"} for _, node in nodes(made) if "$ref" in node)


@pytest.mark.parametrize("path", SPECS, ids=name)
def test_shipped_specs_are_valid(path: Path) -> None:
    kind = kind_of(read_spec(path))
    errors = [f"{'.'.join(map(str, error.path))}: {error.message}"
              for error in VALIDATORS[kind].iter_errors(read_file(path).data)]
    assert not errors


@pytest.mark.parametrize("path", SPECS, ids=name)
def test_shipped_specs_name_their_schema(path: Path) -> None:
    first = path.read_text(encoding="utf-8").split("\n")[0]
    prefix = "# yaml-language-server: $schema="
    assert first.startswith(prefix)
    assert (path.parent / first.removeprefix(prefix)).resolve() == DOCS / f"{kind_of(read_spec(path))}.json"


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_has_a_hover_text(kind: str) -> None:
    made = schema.schema(kind)
    assert made["title"] and made["description"]
    silent = []
    for path, node in nodes(made):
        for key, value in node.get("properties", {}).items():
            refs = [value, *value.get("allOf", [])]
            there = [made["definitions"][ref["$ref"].split("/")[-1]] for ref in refs if "$ref" in ref]
            if not any(item.get("description") for item in (value, *there)):
                silent.append(f"{path}/{key}")
    assert not silent


GOOD: dict[str, dict[str, Any]] = {
    kind: read_file(next(path for path in SPECS if kind_of(read_spec(path)) == kind)).data  # type: ignore[misc]
    for kind in KINDS
}


def changed(kind: str, *route: str | int, value: Any) -> Any:
    data = json.loads(json.dumps(GOOD[kind]))
    node = data
    for step in route[:-1]:
        node = node[step]
    node[route[-1]] = value
    return data


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_begin_with_x_are_free_everywhere(kind: str) -> None:
    def spread(node: Any) -> Any:
        if isinstance(node, list):
            return [spread(item) for item in node]
        if isinstance(node, dict):
            return {**{key: spread(value) for key, value in node.items()}, "x-mine": [{"y": None}]}
        return node

    assert VALIDATORS[kind].is_valid(spread(GOOD[kind]))


@pytest.mark.parametrize(
    ("kind", "route", "value"),
    [
        ("checkpoint", ("version",), 1),
        ("checkpoint", ("version",), "2"),
        ("checkpoint", ("docs",), "unknown key"),
        ("checkpoint", ("doc",), None),
        ("checkpoint", ("try",), []),
        ("checkpoint", ("tensors",), {}),
        ("checkpoint", ("tensors", "w"), {"role": "scales", "dtype": "int32", "order": "n k"}),
        ("checkpoint", ("tensors", "w"), {"role": "codes", "dtype": "int32"}),
        ("checkpoint", ("tensors", "w"), {"role": "codes", "dtype": "int32", "order": "n k", "splt": "k = kw"}),
        ("checkpoint", ("params", "bits"), {"value": [4, 8]}),
        ("checkpoint", ("params", "bits"), []),
        ("checkpoint", ("parts",), {"stored": ["together"]}),
        ("kernel", ("accepts", "tiles"), [{"n": 0, "k": 64}]),
        ("kernel", ("accepts", "groups"), ["128"]),
        ("kernel", ("detect",), {"quant_method": "gptq"}),
        ("module", ("ranks",), {"pp": "n"}),
        ("module", ("matrices",), {"w": {"n": "n"}}),
        ("module", ("matrices",), {"w": {"n": "n", "k": "k", "pad": "front"}}),
        ("module", ("activation",), "relu"),
    ],
)
def test_mistakes_show_in_the_editor(kind: str, route: tuple[str | int, ...], value: Any) -> None:
    assert VALIDATORS[kind].is_valid(GOOD[kind])
    assert not VALIDATORS[kind].is_valid(changed(kind, *route, value=value))


@pytest.mark.parametrize(
    ("kind", "route", "value"),
    [
        ("checkpoint", ("params", "bits"), [4, 8]),
        ("checkpoint", ("params", "bits"), {"type": "int", "default": 4}),
        ("checkpoint", ("tensors", "w"), {"role": "bias", "dtype": ["float16", "int8"], "order": "n (k)", "when": 1}),
        ("module", ("ranks",), {"tp": "{split}", "ep": "none"}),
        ("module", ("matrices",), {"w": {"n": "n", "k": "k", "parts": "{names}"}}),
        ("module", ("try",), [{"n": [64, 8, 8], "k": 64, "names": "q,k,v"}]),
    ],
)
def test_what_may_be_written_shows_no_mistake(kind: str, route: tuple[str | int, ...], value: Any) -> None:
    assert VALIDATORS[kind].is_valid(changed(kind, *route, value=value))


def test_write(tmp_path: Path) -> None:
    paths = schema.write(tmp_path / "deep" / "er")
    assert [path.name for path in paths] == ["checkpoint.json", "kernel.json", "module.json"]
    assert all(path.read_text(encoding="utf-8") == schema.text(path.stem) for path in paths)
