"""The JSON Schemas in a real editor server: npm's yaml-language-server, spoken to as an editor does, over stdio.

`make test` installs the server beside the tests' environment where npm is at hand. Without Node.js or the server these
tests are skipped.
"""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layoutdsl.library import shipped

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 60


def server() -> list[str] | None:
    """The command that starts the server: of the environment, of the repository, or of the machine."""
    node = shutil.which("node")
    for folder in (Path(sys.prefix), ROOT):
        script = folder / "node_modules" / "yaml-language-server" / "bin" / "yaml-language-server"
        if node is not None and script.is_file():
            return [node, str(script), "--stdio"]
    found = shutil.which("yaml-language-server")
    return [found, "--stdio"] if node is not None and found is not None else None


pytestmark = pytest.mark.skipif(server() is None, reason="Node.js or yaml-language-server is not installed")


class Editor:
    """As much of the Language Server Protocol as an editor needs to show completions, hover texts and mistakes."""

    def __init__(self, command: list[str]) -> None:
        environment = {**os.environ, "HTTP_PROXY": "", "HTTPS_PROXY": ""}  # the server shall fetch nothing
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.messages: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.count = 0
        capabilities = {
            "textDocument": {
                "hover": {"contentFormat": ["markdown"]},
                "completion": {"completionItem": {"documentationFormat": ["markdown"]}},
                "publishDiagnostics": {},
            },
            "workspace": {"configuration": False, "didChangeConfiguration": {}},
        }
        self.ask("initialize", {"processId": os.getpid(), "rootUri": ROOT.as_uri(), "capabilities": capabilities})
        self.tell("initialized", {})
        yaml = {"schemaStore": {"enable": False}, "validate": True, "hover": True, "completion": True}
        self.tell("workspace/didChangeConfiguration", {"settings": {"yaml": yaml}})

    def open(self, text: str, *, kind: str) -> str:
        """Open a spec that names the schema of its kind in its first line, as our own do; returns its address."""
        self.count += 1
        uri = (shipped() / kind / f"unsaved_{self.count}.yaml").as_uri()
        first = f"# yaml-language-server: $schema=../../docs/schema/{kind}.json\n"
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": first + text}
        self.tell("textDocument/didOpen", {"textDocument": document})
        return uri

    def complete(self, text: str, *, kind: str) -> dict[str, str]:
        """What the server offers at the place of `|`, with its description."""
        text, line, column = cursor(text)
        at = {"textDocument": {"uri": self.open(text, kind=kind)}, "position": {"line": line, "character": column}}
        found = self.ask("textDocument/completion", at)
        items = found["items"] if isinstance(found, dict) else found
        return {item["label"]: words(item.get("documentation")) for item in items}

    def hover(self, text: str, *, kind: str) -> str:
        """What the server says of the word at the place of `|`."""
        text, line, column = cursor(text)
        at = {"textDocument": {"uri": self.open(text, kind=kind)}, "position": {"line": line, "character": column}}
        found = self.ask("textDocument/hover", at)
        return words(found["contents"]) if found else ""

    def mistakes(self, text: str, *, kind: str) -> list[tuple[int, str]]:
        """Line (from 1, the first is that of the schema) and text of what the server marks."""
        uri = self.open(text, kind=kind)
        while True:
            message = self.messages.get(timeout=SECONDS)
            if message.get("method") == "textDocument/publishDiagnostics" and message["params"]["uri"] == uri:
                found = message["params"]["diagnostics"]
                return [(one["range"]["start"]["line"] + 1, one["message"]) for one in found]

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self.count += 1
        asked = self.count
        self._send({"id": asked, "method": method, "params": params})
        while True:
            message = self.messages.get(timeout=SECONDS)
            if message.get("id") == asked and "method" not in message:
                assert "error" not in message, message
                return message["result"]

    def tell(self, method: str, params: dict[str, Any]) -> None:
        self._send({"method": method, "params": params})

    def close(self) -> None:
        self.ask("shutdown", {})
        self.tell("exit", {})
        self.process.wait(SECONDS)

    def _send(self, message: dict[str, Any]) -> None:
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)
        self.process.stdin.flush()

    def _listen(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        while head := stream.readline():
            size = int(head.partition(b":")[2]) if head.lower().startswith(b"content-length") else 0
            while stream.readline().strip():
                pass
            message = json.loads(stream.read(size))
            if "id" in message and "method" in message:  # the server asks for something: it gets nothing
                self._send({"id": message["id"], "result": None})
            self.messages.put(message)


def cursor(text: str) -> tuple[str, int, int]:
    """The text without `|`, and where that stood, one line lower for the line that names the schema."""
    before, after = text.split("|")
    line = before.count("\n")
    return before + after, line + 1, len(before) - before.rfind("\n") - 1


def words(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(map(words, content))
    return str(content["value"]) if isinstance(content, dict) else content or ""


@pytest.fixture(scope="module")
def editor() -> Iterator[Editor]:
    command = server()
    assert command is not None
    one = Editor(command)
    yield one
    one.close()


FORMAT = """\
version: "1"
checkpoint: mine
doc: a format
source: made up
tensors:
  w:
    role: codes
    dtype: int32
    order: "kw, n {kp}"
"""


def test_keys_are_completed(editor: Editor) -> None:
    found = editor.complete('version: "1"\ncheckpoint: mine\n|\n', kind="checkpoint")
    assert {"doc", "source", "params", "parts", "tensors", "value", "try", "detect"} <= set(found)
    assert "version" not in found
    assert "where the facts come from" in found["source"]
    inside = editor.complete(FORMAT + "    |\n", kind="checkpoint")
    assert {"split", "code", "cases", "when", "scaled"} <= set(inside)
    assert not {"role", "tensors", "accepts"} & set(inside)


@pytest.mark.parametrize(
    ("kind", "text", "offered"),
    [
        ("checkpoint", "tensors:\n  w:\n    role: |\n", {"codes", "zero_point", "scale", "global_scale", "bias"}),
        ("checkpoint", "parts:\n  stored:\n    - |\n", {"apart", "stacked", "alternating"}),
        ("checkpoint", "params:\n  bits:\n    type: |\n", {"values", "int", "bool", "group", "names"}),
        ("kernel", "accepts:\n  |\n", {"tiles", "groups", "capability"}),
        ("module", "matrices:\n  w:\n    pad: |\n", {"part", "tail"}),
        ("module", "ranks:\n  |\n", {"tp", "ep"}),
        ("module", "activation: |\n", {"zero", "unknown"}),
    ],
)
def test_values_are_completed(editor: Editor, kind: str, text: str, offered: set[str]) -> None:
    found = {label.strip('"') for label in editor.complete(text, kind=kind)}
    assert offered <= found


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("checkpoint", "so|urce: made up\n", "where the facts come from"),
        ("checkpoint", FORMAT.replace("role: codes", "ro|le: codes"), "what the tensor is for"),
        ("checkpoint", FORMAT.replace("order:", "ord|er:"), "an order of digits"),
        ("kernel", "accepts:\n  til|es: []\n", "families: n and k are multiples of one of these"),
        ("kernel", "ba|se: marlin_int4_a16\n", "the kernel that this one is another build of"),
        ("module", "visi|ble: [h]\n", "axes seen outside"),
    ],
)
def test_hover_texts(editor: Editor, kind: str, text: str, said: str) -> None:
    assert said in editor.hover(text, kind=kind)


def test_mistakes_are_marked(editor: Editor) -> None:
    text = FORMAT.replace("    order:", "    ordr:") + "value: w\ntry: [{n: 64, k: 128}]\n"
    found = editor.mistakes(text, kind="checkpoint")
    assert (10, "Property ordr is not allowed.") in found
    assert any(line == 7 and '"order"' in message for line, message in found)
    assert len(found) == 2


@pytest.mark.parametrize("path", sorted(shipped().glob("*/*.yaml")), ids=lambda path: path.stem)
def test_shipped_specs_show_no_mistake(editor: Editor, path: Path) -> None:
    kind = path.parent.name
    if kind == "names":
        return
    text = path.read_text(encoding="utf-8").partition("\n")[2]
    assert editor.mistakes(text, kind=kind) == []
