r"""The patterns by which config.json names layers, matched in linear time: they come from a stranger.

    Pattern(r"re:.*mlp\.gate$", work).matches("model.layers.3.mlp.gate")    # a regular expression, from the beginning
    Pattern("layers.*.mlp", work).matches("model.layers.3.mlp.gate")        # whole steps of a name, `*` for anything

Of Python's regular expressions it knows characters, `.`, classes, groups, `|`, repetitions, `^ $ \A \Z \b \B`, and
`(?!...)` and `(?=...)` at the very beginning. They become states, and each set of states that names lead to is worked
out once: a name costs one look-up for each of its characters, whatever the pattern is. Refused are references to groups
and all other kinds of `(?`, patterns that are very long, and those with very many states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from layoutdsl.errors import LayoutError

MAX_LENGTH = 20_000
"""Longest pattern, in characters."""

MAX_STATES = 40_000
"""Most states of a pattern, repetitions written out."""

MAX_PATTERNS = 1_000
"""Most patterns in one config.json."""

MAX_DEPTH = 20
"""Deepest nesting of groups."""

MAX_WORK = 10_000_000
"""Most steps between states that all patterns may cost until their sets of states are known: some seconds."""


class Work:
    """What the patterns of one config.json have cost."""

    def __init__(self) -> None:
        self.patterns = self.steps = 0

    def add(self, *, patterns: int = 0, steps: int = 0) -> None:
        """LayoutError where it becomes too much."""
        self.patterns += patterns
        self.steps += steps
        if self.patterns > MAX_PATTERNS or self.steps > MAX_WORK:
            raise LayoutError(
                f"config.json has more than {MAX_PATTERNS} patterns of layers"
                if self.patterns > MAX_PATTERNS
                else "the patterns of config.json are too costly to match",
                code="LP215",
                name="bad-config",
                help="write fewer and simpler patterns, or list the layers' names",
            )


class Pattern:
    """An entry of a list of layers: `re:` and a regular expression, or a name with `*` in it."""

    def __init__(self, entry: str, work: Work):
        """LayoutError where the pattern cannot be read or is one too many."""
        work.add(patterns=1)
        try:
            self.matches: Callable[[str], bool] = (
                _Conditions(entry[3:], work).match if entry.startswith("re:") else _Wildcard(entry).match
            )
        except _Unreadable as error:
            raise LayoutError(
                f"config.json: `{_short(entry)}` is no pattern: {error}",
                code="LP215",
                name="bad-config",
                help="behind `re:` stands a regular expression of Python, without references and lookbehinds",
            ) from None


class _Unreadable(ValueError):
    """Why a pattern is none."""


def _short(entry: str) -> str:
    return entry if len(entry) <= 80 else entry[:79] + "…"


class _Wildcard:
    """Pieces between `*`: found one after the other, from the start of a step of the name to the end of one."""

    def __init__(self, entry: str):
        if len(entry) > MAX_LENGTH:
            raise _Unreadable(f"it is longer than {MAX_LENGTH} characters")
        self.pieces = [piece for piece in f".{entry}.".split("*") if piece]

    def match(self, name: str) -> bool:
        at, text = 0, f".{name}."
        for piece in self.pieces:
            at = text.find(piece, at)
            if at < 0:
                return False
            at += len(piece)
        return True


class _Conditions:
    """A regular expression: what it must match, after what it must or must not match as well."""

    def __init__(self, text: str, work: Work):
        if len(text) > MAX_LENGTH:
            raise _Unreadable(f"it is longer than {MAX_LENGTH} characters")
        self.wanted = [(wanted, _Automaton(states, work)) for wanted, states in _Reader(text).conditions()]

    def match(self, name: str) -> bool:
        return all(automaton.match(name) == wanted for wanted, automaton in self.wanted)


# --- states -----------------------------------------------------------------------------------------------------------


@dataclass
class _State:
    """One state: with `takes` it takes a character and goes on to `next`; with `holds` it goes on where that is so
    between two characters; else it goes on to each of `next`. Without `next` the pattern has matched."""

    takes: Callable[[str], bool] | None = None
    holds: Callable[[str, str], bool] | None = None
    next: list[_State] = field(default_factory=list)


Key = tuple[frozenset[int], str]
"""States, and what kind of character stands before: none, one of a word, another."""


class _Automaton:
    """The sets of states that names lead to. A set stands before what is between two characters has been looked at."""

    def __init__(self, first: _State, work: Work):
        self.states: dict[int, _State] = {id(first): first}
        self.first = frozenset([id(first)]), ""
        self.known: dict[tuple[Key, str], Key | None] = {}
        self.work = work

    def match(self, name: str) -> bool:
        at: Key | None = self.first
        for char in (*name, ""):
            step = at, char
            if step not in self.known:
                self.known[step] = self._next(*step)
            at = self.known[step]
            if at is None:
                return True
            if not at[0]:
                return False
        return False

    def _next(self, at: Key, char: str) -> Key | None:
        """Where a character leads, the empty one at the end; None where the pattern has matched before it."""
        states, before = at
        found: dict[int, _State] = {}
        todo, seen = [self.states[one] for one in states], set(states)
        while todo:
            state = todo.pop()
            if not state.next:
                return None
            if state.takes is not None:
                if char and state.takes(char):
                    found[id(state.next[0])] = state.next[0]
            elif state.holds is None or state.holds(before, char):
                new = [one for one in state.next if id(one) not in seen]
                seen.update(map(id, new))
                todo += new
        self.work.add(steps=len(seen))
        self.states.update(found)
        return frozenset(found), "w" if _in_word(char) else "."


# --- reading ----------------------------------------------------------------------------------------------------------

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_CLASSES: dict[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "w": lambda char: char.isalnum() or char == "_",
    "s": str.isspace,
}
_PLACES: dict[str, Callable[[str, str], bool]] = {
    "^": lambda before, after: not before,
    "$": lambda before, after: not after,
    "b": lambda before, after: _in_word(before) != _in_word(after),
    "B": lambda before, after: _in_word(before) == _in_word(after),
}


def _in_word(char: str) -> bool:
    return bool(char) and _CLASSES["w"](char)


def _class_of(letter: str) -> Callable[[str], bool] | None:
    """What `\\d` and its like take; the capital letter takes all else."""
    known = _CLASSES.get(letter.lower())
    if known is None or letter.islower():
        return known
    return lambda char: not known(char)


Fragment = Callable[[_State], _State]
"""What matches and then goes on to a state: it gives the state to begin at."""


class _Reader:
    """Turns the text of a regular expression into states, the last first."""

    def __init__(self, text: str):
        self.text, self.at, self.depth, self.count = text, 0, 0, 0

    def conditions(self) -> Iterator[tuple[bool, _State]]:
        """(whether it must match, first state): the conditions at the beginning, then the pattern itself."""
        self.take("^")  # a match begins at the first character in any case
        while (ahead := self.text[self.at : self.at + 3]) in ("(?!", "(?="):
            self.at += 3
            yield ahead == "(?=", self.group()(self.state())
            behind = self.at
            if self.times() is not None:
                raise _Unreadable(f"nothing to repeat at position {behind}")
        whole = self.sequence() if self.at > 2 and self.text[self.at - 1] == ")" else self.alternatives()
        if self.at < len(self.text):
            raise _Unreadable(f"unbalanced parenthesis at position {self.at}")
        yield True, whole(self.state())

    def state(self, **parts: Any) -> _State:
        self.spend()
        return _State(**parts)

    def spend(self) -> None:
        self.count += 1
        if self.count > MAX_STATES:
            raise _Unreadable(f"it needs more than {MAX_STATES} states")

    def take(self, *texts: str) -> str:
        """The text that stands here and is one of these, taken; else nothing."""
        found = next((text for text in texts if self.text.startswith(text, self.at)), "")
        self.at += len(found)
        return found

    def group(self) -> Fragment:
        """What stands in parentheses, of which the first is taken."""
        opened = self.at - 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Unreadable(f"groups nested deeper than {MAX_DEPTH}")
        inner = self.alternatives()
        if not self.take(")"):
            raise _Unreadable(f"missing ), unterminated subpattern at position {max(opened, 0)}")
        self.depth -= 1
        return inner

    def alternatives(self) -> Fragment:
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        if len(branches) == 1:
            return branches[0]
        return lambda after: self.state(next=[branch(after) for branch in branches])

    def sequence(self) -> Fragment:
        items: list[Fragment] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            items.append(self.repeated(self.item()))

        def joined(after: _State) -> _State:
            self.spend()  # an empty group, repeated, costs something too
            for item in reversed(items):
                after = item(after)
            return after

        return joined

    def repeated(self, item: Fragment) -> Fragment:
        """An item with the repetitions behind it. Whether these are greedy is of no matter to whether it matches."""
        times = self.times()
        if times is None:
            return item
        if self.take("+"):
            raise _Unreadable(f"possessive repetition at position {self.at - 1}")
        self.take("?")
        if self.times() is not None:
            raise _Unreadable(f"multiple repeat at position {self.at - 1}")
        least, most = times

        def made(after: _State) -> _State:
            if most is None:
                loop = self.state(next=[])
                loop.next += [item(loop), after]
                after = loop
            for _ in range((most or least) - least):
                after = self.state(next=[item(after), after])
            for _ in range(least):
                after = item(after)
            return after

        return made

    def times(self) -> tuple[int, int | None] | None:
        """How often the item before repeats: at least and at most."""
        sign = self.take("*", "+", "?")
        if sign:
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        close = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : close].partition(",")
        numbers = [number for number in (low, high) if number]
        if not self.text.startswith("{", self.at) or close < 0 or not (numbers or comma):
            return None
        if not all(number.isascii() and number.isdecimal() for number in numbers):
            return None
        if max(map(len, numbers), default=0) > 5:
            raise _Unreadable(f"more than {MAX_STATES} repetitions")
        self.at = close + 1
        least = int(low or 0)
        most = int(high) if high else None if comma else least
        if most is not None and most < least:
            raise _Unreadable(f"min repeat greater than max repeat at position {self.at}")
        return least, most

    def item(self) -> Fragment:
        char = self.text[self.at]
        if char in "*+?":
            raise _Unreadable(f"nothing to repeat at position {self.at}")
        self.at += 1
        if char == "(":
            if self.take("?") and not self.take(":"):
                raise _Unreadable(f"`(?{self.text[self.at : self.at + 1]}` is not read at position {self.at - 2}")
            return self.group()
        if char == "[":
            return self.taking(self.set())
        if char == ".":
            return self.taking(lambda char: char != "\n")
        if char in "^$":
            return self.holding(char)
        return self.escaped() if char == "\\" else self.taking(char.__eq__)

    def taking(self, takes: Callable[[str], bool]) -> Fragment:
        return lambda after: self.state(takes=takes, next=[after])

    def holding(self, place: str) -> Fragment:
        return lambda after: self.state(holds=_PLACES[place], next=[after])

    def escaped(self) -> Fragment:
        letter = self.text[self.at : self.at + 1]
        if letter in ("b", "B", "A", "Z") and letter:
            self.at += 1
            return self.holding({"A": "^", "Z": "$"}.get(letter, letter))
        takes = _class_of(letter)
        if takes is not None:
            self.at += 1
            return self.taking(takes)
        return self.taking(self.literal().__eq__)

    def literal(self) -> str:
        """The character that an escape stands for, behind its backslash."""
        letter = self.text[self.at : self.at + 1]
        if not letter or (letter.isascii() and letter.isalnum() and letter not in _ESCAPES):
            raise _Unreadable(f"bad escape \\{letter} at position {self.at - 1}")
        self.at += 1
        return _ESCAPES.get(letter, letter)

    def set(self) -> Callable[[str], bool]:
        """What a class in brackets takes, of which the first is taken."""
        opened, negated = self.at - 1, bool(self.take("^"))
        tests: list[Callable[[str], bool]] = []
        singles: list[tuple[str, str]] = []
        while not (tests or singles) or not self.take("]"):  # the first `]` stands for itself
            low = self.member(opened)
            if callable(low):
                tests.append(low)
                continue
            high: str | Callable[[str], bool] = low
            if self.text.startswith("-", self.at) and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                high = self.member(opened)
            if callable(high) or high < low:
                raise _Unreadable(f"bad character range at position {self.at}")
            singles.append((low, high))

        def takes(char: str) -> bool:
            found = any(low <= char <= high for low, high in singles) or any(test(char) for test in tests)
            return found != negated

        return takes

    def member(self, opened: int) -> str | Callable[[str], bool]:
        """One character of a class, or what an escape in it takes."""
        if self.at >= len(self.text):
            raise _Unreadable(f"unterminated character set at position {opened}")
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return char
        takes = _class_of(self.text[self.at : self.at + 1])
        if takes is not None:
            self.at += 1
            return takes
        if self.take("b"):
            return "\b"
        return self.literal()
