"""Findings as a SARIF 2.1.0 log, as code scanning services read it.

An alert is known again by its rule, its file and the text of its line, so that lines above may come and go.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from layoutdsl.errors import Diagnostic, Span
from layoutdsl.lint.report import page, uri
from layoutdsl.lint.rule import FAMILIES, rule_of

if TYPE_CHECKING:
    from layoutdsl.lint.run import Outcome

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def log(outcome: Outcome) -> dict[str, Any]:
    """The log of one run; failures of our own are notifications of the tool."""
    codes = sorted({finding.code for finding in outcome.findings})
    prints = _fingerprints(outcome.findings)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "layoutdsl",
                        "version": version("layoutdsl"),
                        "rules": [_rule(code, outcome.findings) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "where the repository is checked out"}}},
                "invocations": [
                    {
                        "executionSuccessful": not outcome.faults,
                        "toolExecutionNotifications": [
                            {"level": "error", "message": {"text": str(fault)}} for fault in outcome.faults
                        ],
                    }
                ],
                "results": [
                    _result(finding, codes.index(finding.code), known)
                    for finding, known in zip(outcome.findings, prints)
                ],
            }
        ],
    }


def _rule(code: str, findings: Iterable[Diagnostic]) -> dict[str, Any]:
    rule = rule_of(code)
    if rule is None:
        name = next(finding.name for finding in findings if finding.code == code)
        return {"id": code, "name": name}
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.finds},
        "help": {"text": rule.doc, "markdown": rule.doc},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": [FAMILIES[code[:3]]], "page": rule.page},
    }


def _result(finding: Diagnostic, index: int, known: str) -> dict[str, Any]:
    said = [finding.message, *([f"help: {finding.help}"] if finding.help else [])]
    if (see := page(finding)) is not None:
        said.append(f"see: {see}")
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": "error",
        "message": {"text": "\n".join(said)},
        "partialFingerprints": {"primaryLocationLineHash": known},
    }
    if finding.span is not None:
        place = {"artifactLocation": _artifact(finding.span), "region": _region(finding.span)}
        result["locations"] = [{"physicalLocation": place}]
    if finding.fix is not None:
        change = {"deletedRegion": _region(finding.fix.span), "insertedContent": {"text": finding.fix.text}}
        artifact = {"artifactLocation": _artifact(finding.fix.span), "replacements": [change]}
        result["fixes"] = [{"description": {"text": finding.help or finding.message}, "artifactChanges": [artifact]}]
    return result


def _artifact(span: Span) -> dict[str, str]:
    where = uri(span.file)
    if where.startswith("/") or where[1:2] == ":":
        return {"uri": "file://" + quote(os.fsencode("/" + where.lstrip("/")))}
    return {"uri": quote(os.fsencode(where)), "uriBaseId": "%SRCROOT%"}


def _region(span: Span) -> dict[str, int]:
    return {
        "startLine": span.line, "startColumn": span.column, "endLine": span.end_line, "endColumn": span.end_column,
    }  # fmt: skip


def _fingerprints(findings: Iterable[Diagnostic]) -> Iterable[str]:
    """Digest of rule, file and line for each finding, and which of several alike it is."""
    seen: Counter[str] = Counter()
    for finding in findings:
        where = uri(finding.span.file) if finding.span is not None else ""
        line = finding.source[0].strip() if finding.source else finding.message
        digest = hashlib.sha256(os.fsencode("\0".join([finding.code, where, line]))).hexdigest()[:16]
        seen[digest] += 1
        yield f"{digest}:{seen[digest]}"
