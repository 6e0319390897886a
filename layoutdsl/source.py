"""Strict YAML: text to a plain tree that knows where each of its values stands.

    >>> tree = read("tensors:\\n  qweight: {bits: 4}\\n", "gptq.yaml")
    >>> tree.data
    {'tensors': {'qweight': {'bits': 4}}}
    >>> str(tree.span(("tensors", "qweight", "bits")))
    'gptq.yaml:2:19'

A tree holds mappings with text keys, lists, text, integers and the booleans `true` and `false`. Whatever YAML readers
disagree about is refused (`CODES` names it all), because a spec must not mean two things. Nothing is constructed.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin

import yaml

from layoutdsl import files
from layoutdsl.errors import Diagnostic, Edit, LayoutError, Span, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel

Model = TypeVar("Model", bound="BaseModel")
Plain = dict[str, Any] | list[Any] | str | int | bool
Route = tuple[str | int, ...]

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_VALUES = 20_000
MAX_ALIASES = 64
MAX_DIGITS = 18
MAX_FINDINGS = 100
"""Most findings in one file: one with more is no spec."""

_MOST_LINES = 8
"""Lines that a finding keeps of what it stands at."""

CODES = {
    "LD001": "syntax",
    "LD002": "unreadable-file",
    "LD003": "duplicate-key",
    "LD004": "implicit-boolean",
    "LD005": "sexagesimal-number",
    "LD006": "unquoted-float",
    "LD007": "unusual-integer",
    "LD008": "empty-value",
    "LD009": "timestamp",
    "LD010": "tag",
    "LD011": "several-documents",
    "LD012": "key-not-text",
    "LD013": "merge-key",
    "LD014": "alias",
    "LD015": "too-deep",
    "LD016": "integer-too-long",
    "LD017": "odd-character",
    "LD018": "too-many-values",
    "LD020": "unknown-key",
    "LD021": "missing-key",
    "LD022": "wrong-type",
    "LD023": "wrong-value",
    "LD024": "grammar",
}

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
# Forms of plain text that some YAML reader takes for something else: our reading would be one more opinion.
_AMBIGUOUS = (
    ("LD008", r"~|null|Null|NULL", "`{}` reads as an empty value", 'leave the key out, or quote it: "{}"'),
    ("LD004", r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|True|TRUE|False|FALSE",
     "`{}` reads as a boolean in some YAML readers", 'write `true` or `false`, or quote it: "{}"'),
    ("LD009", r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?", "`{}` reads as a date", 'quote it: "{}"'),
    ("LD005", r"[-+]?[0-9][0-9_]*(:[0-9]+)+(\.[0-9_]*)?", "`{}` reads as a number in base 60 in some YAML readers",
     'quote it: "{}"'),
    ("LD007", r"[-+]?(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*)",
     "`{}` is not a plain decimal integer", 'write it in plain decimal, or quote it: "{}"'),
    ("LD006", r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
     "`{}` reads as a floating-point number", 'quote it: "{}"'),
)
_NO_TEXT = re.compile("|".join(["", "true|false", _INTEGER.pattern, *(row[1] for row in _AMBIGUOUS)]))
# A problem as the pure Python parser words it, whether the place where it began says more, our words, our help.
_SYNTAX = (
    ("mapping values are not allowed", False, "`:` begins a mapping where none can stand",
     "quote text that contains `: `, or check the indentation"),
    (r"found character '\\t'", False, "a tab stands where only spaces may indent", "indent with spaces"),
    ("found character '(.)' that cannot start", False, "plain text cannot begin with `{0}`", "quote it"),
    ("found unexpected (end of stream|document separator)", True, "this quote is never closed", None),
    ("could not find expected ':'", True, "this key has no `: ` after it", None),
    ("expected ',' or '(.)'", False, "expected `,` or `{0}` in what begins in line {line}", None),
    ("expected <block end>", False, "this does not belong to the block that begins in line {line}",
     "align it with its siblings, or close what stands open before it"),
    ("found unknown escape character", False, "unknown escape in double quotes", "use single quotes"),
)


@dataclass(frozen=True)
class Tree:
    """Plain data, and for each path the span of its value and of its key; what comes from a base stands in its text."""

    data: Plain
    file: str
    lines: tuple[str, ...]
    spans: dict[Route, Span]
    keys: dict[Route, Span]
    base: "Tree | None" = None

    def over(self, base: "Tree", keys: Iterable[str]) -> "Tree":
        """Return this tree with those of `keys` at the top that `base` alone states. Requires mappings."""
        assert isinstance(self.data, dict) and isinstance(base.data, dict)
        taken = {key: base.data[key] for key in keys if key in base.data}
        return replace(self, data={**taken, **self.data}, base=base)

    @cached_property
    def digest(self) -> str:
        """sha256 of the text and of its bases'. No spec holds a null character, so none has the text of a build."""
        return hashlib.sha256(self._content().encode()).hexdigest()

    def _content(self) -> str:
        return "\n".join(self.lines) + ("" if self.base is None else f"\0{self.base._content()}")

    def home(self, path: Route) -> "Tree":
        """Return the tree in whose text `path` stands."""
        if self.base is None or path[:1] in self.keys or not path or path[0] not in cast("dict[str, Any]", self.data):
            return self
        return self.base.home(path)

    def span(self, path: Route) -> Span:
        """Return the span of the value at `path`, or of the nearest value that encloses it."""
        if (home := self.home(path)) is not self:
            return home.span(path)
        while path not in self.spans:
            path = path[:-1]
        return self.spans[path]

    def inside(self, path: Route, start: int, end: int) -> Span:
        """Return the span of characters `start` to `end` (exclusive) of the text at `path`.

        Where characters of the text and of the file do not pair off (escapes, folded lines), that is the whole scalar.
        """
        if (home := self.home(path)) is not self:
            return home.inside(path, start, end)
        whole = self.span(path)
        if path not in self.spans or whole.line != whole.end_line:
            return whole
        value: Any = self.data
        for step in path:
            value = value[step]
        if not isinstance(value, str):
            return whole
        raw = self.lines[whole.line - 1][whole.column - 1 : whole.end_column - 1]
        if raw == value:
            shift, before, upto = 0, value[:start], value[:end]
        elif raw[:1] in ("'", '"') and raw[1:-1] == value:
            shift, before, upto = 1, value[:start], value[:end]
        elif raw[:1] == "'" and raw[1:-1] == value.replace("'", "''"):
            shift, before, upto = 1, value[:start].replace("'", "''"), value[:end].replace("'", "''")
        else:
            return whole
        column = whole.column + shift
        return replace(whole, column=column + len(before), end_column=column + max(len(before), len(upto)))

    def diagnostic(
        self,
        code: str,
        name: str,
        message: str,
        path: Route,
        *,
        help: str | None = None,
        within: tuple[int, int] | None = None,
        key: bool = False,
    ) -> Diagnostic:
        """Return a finding at the value at `path`, at its characters `within`, or at its key."""
        if (home := self.home(path)) is not self:
            message = f"{message}, in the base of `{self.file}`"
            return home.diagnostic(code, name, message, path, help=help, within=within, key=key)
        span = self.inside(path, *within) if within is not None else self.span(path)
        if key and path in self.keys:
            span = self.keys[path]
        return Diagnostic(code, name, message, span, help, _covered(self.lines, span))


def read_file(path: str | os.PathLike[str]) -> Tree:
    """Return the tree of a UTF-8 file. Raises LayoutError where it cannot be read, and as `read` does."""
    file = os.fspath(path)
    if Path(path).is_dir():
        raise _unreadable(f"`{file}` is a directory", "name a file")
    try:
        with files.opened(Path(path)) as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(f"cannot read `{file}`: {files.reason(error)}", _WAY_OUT) from None
    if len(content) > MAX_BYTES:
        raise _unreadable(f"`{file}` is larger than {MAX_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        at = Span(file, line, 1, line, 1)
        raise _unreadable(f"`{file}` is not UTF-8 in line {line}", "save it as UTF-8", at) from None
    return read(text, file)


def read(text: str, file: str) -> Tree:
    """Return the tree of one YAML document. Raises LayoutError with every finding that can be made independently."""
    if len(text) > MAX_BYTES:
        raise _unreadable(f"`{file}` is larger than {MAX_BYTES} characters")
    reader = _Reader(text.removeprefix("\ufeff"), file)
    root = reader.document()
    if root is None or reader.found:
        raise LayoutError.of(sorted(reader.found, key=_place))
    spans: dict[Route, Span] = {}
    keys: dict[Route, Span] = {}
    return Tree(_flatten(root, (), spans, keys), file, reader.lines, spans, keys)


_WAY_OUT = "check the path, and who may read it"


def _unreadable(message: str, help: str | None = None, span: Span | None = None) -> LayoutError:
    return LayoutError(message, code="LD002", name=CODES["LD002"], help=help, span=span)


def _place(diagnostic: Diagnostic) -> tuple[int, int]:
    return (diagnostic.span.line, diagnostic.span.column) if diagnostic.span is not None else (0, 0)


@dataclass(frozen=True)
class _Node:
    span: Span
    value: "str | int | bool | list[_Node] | dict[str, tuple[Span, _Node]]"
    size: int = 1
    height: int = 0


def _flatten(node: _Node, path: Route, spans: dict[Route, Span], keys: dict[Route, Span]) -> Plain:
    spans[path] = node.span
    if isinstance(node.value, list):
        return [_flatten(item, (*path, index), spans, keys) for index, item in enumerate(node.value)]
    if not isinstance(node.value, dict):
        return node.value
    data: dict[str, Any] = {}
    for key, (span, value) in node.value.items():
        keys[(*path, key)] = span
        data[key] = _flatten(value, (*path, key), spans, keys)
    return data


class _Stop(Exception):
    """Nothing after this finding can be read."""


class _Reader:
    """Turns YAML events into nodes and collects findings. It checks the depth first, so recursion is bounded."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.lines = tuple(_lines(text))
        self.found: list[Diagnostic] = []
        self.anchors: dict[str, _Node | None] = {}  # None: not closed yet
        self.aliases = self.values = 0
        self.last = Span(file, 1, 1, 1, 1)
        self.events = _events(text)

    def document(self) -> _Node | None:
        odd = _odd(self.text)
        if odd is not None:
            before = _lines(self.text[:odd])
            span = Span(self.file, len(before), len(before[-1]) + 1, len(before), len(before[-1]) + 2)
            self.report("LD017", f"the character U+{ord(self.text[odd]):04X} cannot stand in a spec", span)
            return None
        root = None
        try:
            for event in self.events:
                if isinstance(event, yaml.DocumentStartEvent) and root is not None:
                    self.stop("LD011", "a second document begins here", self.span(event), "keep one document in a file")
                elif isinstance(event, yaml.NodeEvent):
                    root = self.node(event, depth=0)
            if root is None:
                self.stop("LD008", "the file is empty", self.last)
        except yaml.MarkedYAMLError as error:
            self.syntax(error)
        except (yaml.YAMLError, ValueError, OverflowError):
            # The Python parser converts `\U` escapes and version numbers unchecked.
            self.report("LD001", "not readable as YAML after this place", self.last)
        except _Stop:
            pass
        return root

    def node(self, event: Any, *, depth: int, key: Span | None = None) -> _Node:
        self.last = span = self.span(event)
        self.values += 1
        if len(self.found) >= MAX_FINDINGS:
            raise _Stop
        if self.values > MAX_VALUES:
            self.stop("LD018", f"more than {MAX_VALUES} values", span)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event.anchor, span, depth=depth)
        if isinstance(event, yaml.ScalarEvent):
            node = _Node(span, self.scalar(event, span, key))
        else:
            self.anchors[event.anchor] = None
            if depth >= MAX_DEPTH:
                self.stop("LD015", f"nested deeper than {MAX_DEPTH} levels", span)
            self.tagless(event, span)
            collection = self.mapping if isinstance(event, yaml.MappingStartEvent) else self.sequence
            node = collection(span, depth=depth + 1)
        self.anchors[event.anchor] = node
        return node

    def alias(self, name: str, span: Span, *, depth: int) -> _Node:
        target = self.anchors.get(name)
        if target is None:
            why = "stands inside what it refers to" if name in self.anchors else "has no anchor before it"
            self.report("LD014", f"alias `*{_show(name)}` {why}", span)
            return _Node(span, "")
        self.aliases += 1
        self.values += target.size - 1
        if self.aliases > MAX_ALIASES:
            self.stop("LD014", f"more than {MAX_ALIASES} aliases", span)
        if self.values > MAX_VALUES:
            self.stop("LD018", f"more than {MAX_VALUES} values once the aliases are written out", span)
        if depth + target.height > MAX_DEPTH:
            self.stop("LD015", f"nested deeper than {MAX_DEPTH} levels once the alias is written out", span)
        return replace(target, span=span)

    def way_out(self, span: Span, key: Span | None) -> str:
        """What to do where a value is empty; without a colon the key was likely meant as text, or as the end of one."""
        if key is not None and (key.end_line, span.line) == (key.line, key.line):
            between = self.lines[key.line - 1][key.end_column - 1 : span.column - 1]
            if ":" not in between:
                return "quote the text that this belongs to: in braces, `,`, `{` and `}` end plain text"
        return 'leave the key out, or write "" for empty text'

    def scalar(self, event: yaml.ScalarEvent, span: Span, key: Span | None) -> str | int | bool:
        text: str = event.value
        if not self.is_plain(event, span):
            return text
        if text == "":
            self.report("LD008", "this has no value", key or span, self.way_out(span, key))
        elif text in ("true", "false"):
            return text == "true"
        elif _INTEGER.fullmatch(text):
            if len(text.removeprefix("-")) <= MAX_DIGITS:
                return int(text)
            self.report("LD016", f"integer of more than {MAX_DIGITS} digits", span, "quote it if it is text")
            return text
        for code, pattern, what, help in _AMBIGUOUS if _NO_TEXT.fullmatch(text) else ():
            if re.fullmatch(pattern, text):
                fix = Edit(span, text.lower()) if text.lower() in ("true", "false") else None
                self.report(code, what.format(_show(text)), span, help.format(_show(text)), fix)
                break
        return text

    def key(self, event: Any, *, depth: int) -> tuple[str | None, Span]:
        if not isinstance(event, yaml.ScalarEvent):
            span = self.node(event, depth=depth).span
            self.report("LD012", "a key must be text", span, "write the key as plain or quoted text")
            return None, span
        self.last = span = self.span(event)
        text: str = event.value
        self.anchors[event.anchor] = _Node(span, text)
        if self.is_plain(event, span):
            if text == "<<":
                self.report("LD013", "merge keys are not allowed", span, "write out the keys that are meant")
            elif _NO_TEXT.fullmatch(text):
                self.report("LD012", f"the key `{_show(text)}` is not text", span, f'quote it: "{_show(text)}"')
        return text, span

    def is_plain(self, event: yaml.ScalarEvent, span: Span) -> bool:
        odd = _odd(event.value)
        if odd is not None:
            self.report("LD017", f"an escape stands for the character U+{ord(event.value[odd]):04X}", span)
        return self.tagless(event, span) and not event.style

    def tagless(self, event: Any, span: Span) -> bool:
        if event.tag is not None:
            tag = _show(event.tag.replace("tag:yaml.org,2002:", "!!"))
            self.report("LD010", f"tag `{tag}` is not allowed", span, "remove the tag; quote what is text")
        return event.tag is None

    def sequence(self, start: Span, *, depth: int) -> _Node:
        items: list[_Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, depth=depth))
        return self.closed(start, event, items, items)

    def mapping(self, start: Span, *, depth: int) -> _Node:
        items: dict[str, tuple[Span, _Node]] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key, span = self.key(event, depth=depth)
            value = self.node(next(self.events), depth=depth, key=span)
            if key in items:
                help = f"merge the two into one; the first stands in line {items[key][0].line}"
                self.report("LD003", f"`{_show(key)}` stands twice in this mapping", span, help)
            elif key is not None:
                items[key] = span, value
        return self.closed(start, event, items, [value for _, value in items.values()])

    def closed(self, start: Span, event: Any, value: Any, children: list[_Node]) -> _Node:
        # The mark that ends a block stands where the next token begins, so a block ends with its last child.
        is_flow = event.start_mark.index < event.end_mark.index
        last = self.span(event) if is_flow else children[-1].span if children else start
        span = replace(start, end_line=last.end_line, end_column=last.end_column)
        height = 1 + max((child.height for child in children), default=0)
        return _Node(span, value, 1 + sum(child.size for child in children), height)

    def span(self, event: Any) -> Span:
        line, column = event.start_mark.line, event.start_mark.column
        end_line, end_column = event.end_mark.line, event.end_mark.column
        if isinstance(event, yaml.ScalarEvent) and event.anchor is not None:
            anchor = re.compile(r"&\S+\s+(?=\S)").match(self.lines[line], column)
            column = anchor.end() if anchor is not None else column
        # A block scalar ends where the next token begins.
        while end_line > line and (end_line >= len(self.lines) or not self.lines[end_line][:end_column].strip()):
            end_line -= 1
            end_column = len(self.lines[end_line])
        return Span(self.file, line + 1, column + 1, end_line + 1, end_column + 1)

    def syntax(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        start = error.context_mark or mark
        problem = error.problem or error.context or "unknown reason"
        message, help = f"not readable as YAML: {problem}", None
        for pattern, at_start, words, advice in _SYNTAX:
            match = re.match(pattern, problem)
            if match is not None:
                message, help = words.format(*match.groups(), line=start.line + 1), advice
                mark = start if at_start else mark
                break
        line, column = mark.line + 1, mark.column + 1
        self.report("LD001", message, Span(self.file, line, column, line, column + 1), help)

    def report(self, code: str, message: str, span: Span, help: str | None = None, fix: Edit | None = None) -> None:
        source = _covered(self.lines, span)
        self.found.append(Diagnostic(code, CODES[code], message, span, help, source, fix))

    def stop(self, code: str, message: str, span: Span, help: str | None = None) -> NoReturn:
        self.report(code, message, span, help)
        raise _Stop


def _events(text: str) -> Iterator[Any]:
    """Yield the events of libyaml where PyYAML has it, else those of its Python parser: their marks are the same.

    Their wording is not, so where libyaml refuses, the Python parser goes on and has the last word.
    """
    seen = 0
    if yaml.__with_libyaml__:
        try:
            for event in yaml.parse(text, Loader=yaml.CSafeLoader):
                yield event
                seen += 1
            return
        except yaml.YAMLError:
            pass
    yield from islice(yaml.parse(text, Loader=yaml.SafeLoader), seen, None)


def _odd(text: str) -> int | None:
    """Return where the first character stands that shows as nothing, or turns the order of what is shown."""
    if text.isprintable():
        return None
    return next((at for at, char in enumerate(text) if not char.isprintable() and char not in "\t\n\r"), None)


def _covered(lines: tuple[str, ...], span: Span) -> tuple[str, ...]:
    return lines[span.line - 1 : min(span.end_line, span.line - 1 + _MOST_LINES)]


def _lines(text: str) -> list[str]:
    return re.split(r"\r\n|\r|\n", text)


def _show(text: str) -> str:
    short = text if len(text) <= 40 else text[:39] + "…"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in short)


def validate(tree: Tree, model: type[Model], path: Route = ()) -> Model:
    """Return what stands at `path` as a `model`; keys that begin with `x-` are free and left out.

    Raises LayoutError with every finding, each at its place in the text.
    """
    from pydantic import ValidationError

    data: Any = tree.data
    for step in path:
        data = data[step]
    try:
        return model.model_validate(_without_extensions(data))
    except ValidationError as error:
        problems = _furthest([_problem(data, dict(raw)) for raw in error.errors(include_url=False)[:MAX_FINDINGS]], 0)
    # A mistyped key is one finding, not an unknown key and a missing one.
    meant = {(problem.path[:-1], _meant(model, problem)) for problem in problems if problem.kind == "extra_forbidden"}
    typed = [problem for problem in problems if problem.missing is None or (problem.path, problem.missing) not in meant]
    found = dict.fromkeys(_diagnostic(tree, model, path, problem) for problem in typed if not _is_echo(problem))
    raise LayoutError.of(sorted(found, key=_place))


_TYPES = {
    kind: words
    for words, kinds in {
        # By our own rule a dataclass within a model is what text was parsed into.
        "text": "string_type dataclass_type is_instance_of",
        "an integer": "int_type int_parsing int_parsing_size int_from_float",
        "a number": "float_type float_parsing",
        "`true` or `false`": "bool_type bool_parsing",
        "a list": "list_type tuple_type set_type frozen_set_type iterable_type",
        "a mapping": "dict_type mapping_type model_type model_attributes_type",
    }.items()
    for kind in kinds.split()
}
_LIMITS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "a length of at least {min_length}",
    "too_long": "a length of at most {max_length}",
    "string_too_short": "a length of at least {min_length}",
    "string_too_long": "a length of at most {max_length}",
    "string_pattern_mismatch": "text of the form `{pattern}`",
}


@dataclass(frozen=True)
class _Problem:
    """One of pydantic's errors, and where it stands in the data."""

    kind: str
    path: Route
    loc: Route
    labels: tuple[int, ...]  # positions in `loc` that name a branch of a union rather than a place
    expected: str | None  # in words, where the value has the wrong type or is none of those listed
    missing: str | None
    message: str
    given: Any
    context: dict[str, Any]


def _problem(data: Any, raw: dict[str, Any]) -> _Problem:
    kind, loc, given, context = raw["type"], raw["loc"], raw["input"], raw.get("ctx", {})
    expected, missing = _TYPES.get(kind), None
    if kind in ("literal_error", "enum"):
        expected = _ticked(context["expected"])
        # The key of a mapping that allows only some is an unknown key, whatever pydantic calls it.
        kind = "extra_forbidden" if loc[-1:] == ("[key]",) else kind
    elif kind == "union_tag_invalid":
        expected, given = " or ".join(_ticked(context["expected_tags"]).split(", ")), context["tag"]
        loc = (*loc, context["discriminator"].strip("'"))
    elif kind in ("missing", "union_tag_not_found"):
        missing = loc[-1] if kind == "missing" else context["discriminator"].strip("'")
        loc = loc[:-1] if kind == "missing" else loc
    # Labels can be spelled like keys: of all readings take the one that drops least, and rather not the last step.
    readings: list[tuple[Route, tuple[int, ...], Any]] = [((), (), data)]
    for at, step in enumerate(loc):
        taken = [((*path, step), labels, node[step]) for path, labels, node in readings if _has(node, step)]
        dropped = [(path, (*labels, at), node) for path, labels, node in readings]
        readings = sorted(taken + dropped, key=lambda reading: len(reading[1]))[:16]
    path, labels, _ = readings[0]
    return _Problem(kind, path, loc, labels, expected, missing, raw["msg"], given, context)


def _is_echo(problem: _Problem) -> bool:
    # pydantic counts the valid entries alone, so a bad entry also makes a list too short.
    return problem.kind == "too_short" and len(problem.given) >= problem.context["min_length"]


def _ticked(words: str) -> str:
    return re.sub("'([^']*)'", r"`\1`", words)


def _has(node: Any, step: str | int) -> bool:
    if isinstance(node, list):
        return isinstance(step, int) and step < len(node)
    return isinstance(node, dict) and step in node


def _furthest(problems: list[_Problem], level: int) -> list[_Problem]:
    """Return the problems of that branch of each union which understood most of what was written."""
    kept: list[_Problem] = []
    unions: dict[Route, dict[str | int, list[_Problem]]] = {}
    for problem in problems:
        if len(problem.labels) <= level:
            kept.append(problem)
            continue
        at = problem.labels[level]
        unions.setdefault(problem.loc[:at], {}).setdefault(problem.loc[at], []).append(problem)
    for branches in unions.values():
        every = [problem for branch in branches.values() for problem in branch]
        words = list(dict.fromkeys(problem.expected or "" for problem in every))
        if len(branches) > 1 and all(words) and len({problem.path for problem in every}) == 1:
            either = ", ".join(words[:-1]) + " or " + words[-1] if len(words) > 1 else words[0]
            kept.append(replace(every[0], expected=either))
        else:
            kept += _furthest(max(branches.values(), key=_reach), level + 1)
    return kept


def _reach(branch: list[_Problem]) -> tuple[int, bool, int]:
    depth = max(len(problem.path) + (problem.missing is not None) for problem in branch)
    return depth, any(problem.expected is None for problem in branch), -len(branch)


def _diagnostic(tree: Tree, model: type[Model], base: Route, problem: _Problem) -> Diagnostic:
    path, context, given, key = (*base, *problem.path), problem.context, problem.given, problem.loc[-1:] == ("[key]",)
    name = next((_show(step) for step in reversed(path) if isinstance(step, str)), None)
    expected = problem.expected
    help: str | None = context.get("help")
    quoted: str | None = None
    within: tuple[int, int] | None = None
    if problem.missing is not None:
        code, key = "LD021", True
        message = f"missing key `{problem.missing}`" + (f" in `{name}`" if name is not None else "")
    elif problem.kind == "extra_forbidden":
        code, key, message = "LD020", True, f"unknown key `{name}`"
        allowed, meant = _allowed(model, problem), _meant(model, problem)
        listed = ", ".join(f"`{word}`" for word in allowed)
        help = (f"did you mean `{meant}`? " if meant else "") + f"allowed here: {listed or 'none'}"
    elif expected is not None or problem.kind in _LIMITS:
        code = "LD022" if problem.kind in _TYPES else "LD023"
        expected = expected or _LIMITS[problem.kind].format(**context)
        found = str(len(given)) if problem.kind.endswith(("too_short", "too_long")) else _found(given)
        where = "" if name is None else f" for `{name}`" if name == path[-1] else f" in `{name}`"
        message = f"expected {expected}{where}, found {found}"
        if isinstance(given, str):
            help = did_you_mean(given, re.findall("`(.*?)`", expected))
        elif isinstance(given, int) and re.search(f"text|`{given}`", expected):
            quoted = f'"{str(given).lower()}"'
            help = f"quote it: {quoted}"
    else:
        code = "LD024" if problem.kind == "grammar" else "LD023"
        owner = f"tensor `{_show(path[1])}`: " if code == "LD024" and path[0] == "tensors" and len(path) > 2 else ""
        message = owner + str(context.get("error", problem.message)).replace("Input should be ", "expected ")
        if isinstance(context.get("start"), int) and isinstance(context.get("end"), int):
            within = context["start"], context["end"]
    found = tree.diagnostic(code, CODES[code], message, path, help=help, within=within, key=key)
    is_plain = quoted is not None and found.span is not None and _raw(found, found.span) == quoted[1:-1]
    return replace(found, fix=Edit(found.span, quoted)) if is_plain else found  # pyright: ignore[reportArgumentType]


def _raw(found: Diagnostic, span: Span) -> str:
    """The text of a value of one line as it stands in the file."""
    return found.source[0][span.column - 1 : span.end_column - 1] if span.line == span.end_line else ""


def _found(given: Any) -> str:
    if isinstance(given, dict):
        return "a mapping"
    if isinstance(given, list):
        return "a list"
    if isinstance(given, bool):
        return f"`{str(given).lower()}`"
    return f"text `{_show(given)}`" if isinstance(given, str) else f"the integer `{given}`"


def _meant(model: type[Model], problem: _Problem) -> str | None:
    question = did_you_mean(str(problem.path[-1]), _allowed(model, problem))
    return question.split("`")[1] if question is not None else None


def _without_extensions(data: Any) -> Any:
    if isinstance(data, list):
        return [_without_extensions(item) for item in data]
    if isinstance(data, dict):
        return {key: _without_extensions(value) for key, value in data.items() if not key.startswith("x-")}
    return data


def _allowed(model: Any, problem: _Problem) -> list[str]:
    """Return the keys that could stand where the unknown one does; labels pick one model of a union."""
    if problem.expected is not None:
        return re.findall("`(.*?)`", problem.expected)
    types = list(_members(model))
    for step in problem.path[:-1]:
        types = [member for outer in types for inner in _inside(outer, step) for member in _members(inner)]
    models = [member for member in types if hasattr(member, "model_fields")]
    labels = {str(problem.loc[at]) for at in problem.labels}
    named = [member for member in models if labels & {member.__name__, *_literals(member)}]
    fields = [item for member in named or models for item in member.model_fields.items()]
    return list(dict.fromkeys(info.alias or name for name, info in fields))


def _literals(model: Any) -> Iterator[str]:
    """Yield the values by which a discriminator tells this model from others."""
    for info in model.model_fields.values():
        yield from (str(value) for value in get_args(info.annotation) if get_origin(info.annotation) is Literal)


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation stands for, wrappers and unions opened."""
    origin = get_origin(annotation)
    if hasattr(annotation, "__value__"):
        yield from _members(annotation.__value__)
    elif origin is Annotated:
        yield from _members(annotation.__origin__)
    elif origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    elif "root" in getattr(annotation, "model_fields", {}):
        yield from _members(annotation.model_fields["root"].annotation)
    else:
        yield annotation


def _inside(annotation: Any, step: str | int) -> list[Any]:
    fields, args = getattr(annotation, "model_fields", None), get_args(annotation)
    if fields is not None:
        return [info.annotation for name, info in fields.items() if step == (info.alias or name)]
    if isinstance(step, str):
        return [args[1]] if len(args) == 2 and get_origin(annotation) is not tuple else []
    if get_origin(annotation) is tuple and Ellipsis not in args:
        return list(args[step : step + 1])
    return list(args[:1])
