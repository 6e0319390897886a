"""Edits that rules propose, where there is one way to mend what they find."""

from __future__ import annotations

from dataclasses import replace

from layoutdsl.errors import Edit
from layoutdsl.source import Route, Tree


def instead(tree: Tree, path: Route, text: str) -> Edit:
    """`text`, as YAML writes it, in the place of the value at `path`."""
    return Edit(tree.span(path), text)


def without_item(tree: Tree, path: Route) -> Edit | None:
    """Remove an item of a list that is not its first, with what stands between it and the one before.

    None where a comment stands between them or behind it: whoever wrote that should see it go.
    """
    *above, at = path
    assert isinstance(at, int) and at > 0
    before, item = tree.span((*above, at - 1)), tree.span(path)
    span = replace(before, line=before.end_line, column=before.end_column,
                   end_line=item.end_line, end_column=item.end_column)  # fmt: skip
    between = "\n".join(tree.lines[before.end_line - 1 : item.line - 1])[before.end_column - 1 :]
    behind = tree.lines[item.end_line - 1][item.end_column - 1 :]
    return None if "#" in between or "#" in behind else Edit(span, "")
