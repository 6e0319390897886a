"""The boxes of a program that torch carries on words, for experts of which no code is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from layoutdsl.backends.moves import shares
from layoutdsl.backends.torch.boxes import Box, Last
from layoutdsl.backends.torch.lower import Launch, lower, straight
from layoutdsl.backends.torch.orders import in_order
from layoutdsl.backends.torch.sources import Sources, data
from layoutdsl.backends.torch.word_recodes import recoded
from layoutdsl.backends.torch.words import carry
from layoutdsl.codes import code_named
from layoutdsl.plan import Move, Program, TensorInfo


def carry_on_words(
    program: Program, info: TensorInfo, sources: Sources, views: Mapping[int, torch.Tensor]
) -> dict[int, set[Box]]:
    """Carry what has launches into the flat bytes of some experts' outputs; returns each one's boxes that are done."""
    done: dict[int, set[Box]] = {expert: set() for expert in views}
    found = list(_launches(program, info)) if views and not shares(program) else []
    sorts = any(_looks_up(move) for move, *_ in found)
    # A sorted copy is as large as a tensor: of one expert at a time.
    for batch in [[expert] for expert in views] if sorts else [list(views)]:
        last = Last()
        for move, box, name, launch in found:
            of = [_source(move, box.part, name, sources, expert, last) for expert in batch]
            way = recoded(launch, program, sources, batch)
            if way is not None and None not in of:
                carry(way[0], [views[expert] for expert in batch], of, way[1])
                for expert in batch:
                    done[expert].add(box)
    return done


def _source(
    move: Move, part: int, name: str, sources: Sources, expert: int, last: Last
) -> torch.Tensor | None:
    """The flat bytes of a source, sorted where it is looked up; the last sorted copy is kept."""
    codes = sources.codes(name, expert)
    if not _looks_up(move):
        return codes.flat
    return last.of((name, part), lambda: in_order(move, part, codes, sources, expert))


def _launches(program: Program, info: TensorInfo) -> Iterator[tuple[Move, Box, str, Launch]]:
    for move, box, name in data(program.sources, program.moves):
        plain = straight(move, box)
        launch = lower(plain, code_named(info.code).bits) if plain is not None else None
        if launch is not None:
            yield move, box, name, launch


def _looks_up(move: Move) -> bool:
    return move.gather_n is not None or move.gather_k is not None
