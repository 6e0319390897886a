"""The rules and habits of the engine that the recorded cases come from; see data/peer.yaml.

Read by `conform` and the benchmarks only. The planner must not import it: our choices do not follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from layoutdsl import source
from layoutdsl.grammar import parse_expr
from layoutdsl.recodes import Habits

_FILE = Path(__file__).resolve().parent / "data" / "peer.yaml"


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    return source.read_file(_FILE).data


def habits() -> Habits:
    """How that engine chooses pad codes, NVFP4 factors and INT8 scales."""
    return Habits(**_data()["habits"])


@cache
def _parsed(text: str):
    return parse_expr(text)


def tables() -> tuple[str, ...]:
    """The policy tables that the rules cover."""
    return tuple(_data()["policy"])


def policy(table: str, row: Mapping[str, Any]) -> dict[str, int]:
    """What the engine's rule of that table says for a row's inputs: column -> number (booleans are 0 and 1)."""
    rule = _data()["policy"][table]
    choices: list[tuple[tuple[int, ...], dict[str, int]]] = []
    for pick in rule["pick"]:
        made = {column: int(_parsed(text).evaluate(row)) for column, text in pick.items()}
        cost = tuple(int(_parsed(str(text)).evaluate({**row, **made})) for text in rule["cost"])
        choices.append((cost, made))
    return min(choices, key=lambda choice: choice[0])[1]
