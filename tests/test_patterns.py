"""Patterns of config.json: they mean what Python's `re` means, and no name costs more than its length."""

import random
import re
import time

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from layoutdsl import LayoutError
from layoutdsl.checkpoints import patterns
from layoutdsl.checkpoints.patterns import MAX_LENGTH, MAX_PATTERNS, Pattern, Work

LAYERS = [
    "lm_head",
    "model.embed_tokens",
    "model.layers.3.self_attn.q_proj",
    "model.layers.19.mlp.gate",
    "model.layers.5.mlp.gate_proj",
    "model.layers.7.mlp.shared_experts.down_proj",
    "visual.merger.mlp",
    "model.layers.11.mlp.experts.127.up_proj",
    "mtp.layers.0",
    "model.vision_tower.head",
]

# As public checkpoints and recipes have them.
REAL = [
    "re:.*lm_head",
    "re:.*mlp.gate$",
    r"re:model\.layers\.\d+\.mlp\.gate$",
    "re:.*self_attn.(q|k|v)_proj",
    "re:visual.*",
    "re:.*(?:router|mlp.gate)$",
    r"re:.*(?:mlp|ffn)\.experts\.\d+\.(?:gate_proj|up_proj|down_proj|w[123])$",
    r"re:.*(?:^|\.)(?:embed|embed_tokens|lm_head|head|shared_head)(?:\.|$).*",
    r"re:(?:model\.)?mtp(?:\..*)?",
    "re:^(?!.*shared_experts).*$",
    r"re:^(?!.*\.mlp\.experts(?:\.|$)).*$",
    r"re:^(?!.*language_model\.model\.layers\.)",
    r"re:.*\.(?:1[0-5])\..*",
    r"re:.*\.(?:1[6-9]|20|21)\..*",
    r"re:.*\.19\..*gate.*",
    r"re:.*\bvisual\.merger\..*",
    r"re:.*layers\.(56|57|5)\.mlp\.(gate|up|down)_proj$",
    "re:^mtp.*",
    "re:model.layers.[0-7].mlp",
    "re:",
    "re:.*(gate|head){1,2}",
]


def matches(entry: str, name: str) -> bool:
    return Pattern(entry, Work()).matches(name)


@pytest.mark.parametrize("entry", REAL)
def test_real_patterns_mean_what_python_s_mean(entry: str) -> None:
    for layer in LAYERS:
        assert matches(entry, layer) == bool(re.match(entry[3:], layer)), layer


ATOMS = st.sampled_from(
    [
        "a",
        "b",
        ".",
        r"\.",
        r"\d",
        r"\w",
        r"\W",
        r"\s",
        "[ab]",
        "[^a]",
        "[a-c1]",
        "[]a]",
        "[^]]",
        r"[\d_-]",
        "^",
        "$",
        r"\b",
        r"\B",
        r"\A",
        r"\Z",
        "1",
        "_",
        "",
        "()",
        "{",
        "{}",
        "]",
        r"\]",
    ]
)
REPEATS = st.sampled_from(
    ["", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}", "{1,}", "{,}", "{0}", "{a}"]
)


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeated = st.tuples(st.sampled_from(["(", "(?:"]), inner, REPEATS).map(
        lambda parts: f"{parts[0]}{parts[1]}){parts[2]}"
    )
    return st.one_of(
        st.lists(inner, max_size=3).map("".join), st.lists(inner, min_size=1, max_size=3).map("|".join), repeated
    )


EXPRESSIONS = st.recursive(st.tuples(ATOMS, REPEATS).map("".join), larger, max_leaves=6)
AHEAD = st.sampled_from(["", "", "", "(?!{})", "(?={})", "^(?!{})", "^(?!{0})(?={0})"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(AHEAD, EXPRESSIONS, EXPRESSIONS, st.text("ab1_.- ]{", min_size=1, max_size=8))
@example("", "", "(a|ab)(c|bcd)$", "abcd")
@example("", "", "(?:a*)*b", "aaab")
@example("(?!{})", "a", "{2}", "1")
def test_any_pattern_means_what_python_s_means(ahead: str, condition: str, text: str, name: str) -> None:
    whole = ahead.format(condition) + text
    try:
        wanted = bool(re.match(whole, name))
    except re.error:
        return
    try:
        found = matches(f"re:{whole}", name)
    except LayoutError as error:
        # Beside a condition no `|` may stand, and behind it no repetition.
        assert ahead and re.search("unbalanced parenthesis|nothing to repeat", error.message), error.message
        return
    assert found == wanted, whole


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.text("ab.*", min_size=1, max_size=8), st.lists(st.sampled_from(["a", "b", "ab", "ba"]), min_size=1, max_size=4)
)
def test_wildcards(entry: str, steps: list[str]) -> None:
    name = ".".join(steps)
    assume(all(entry.strip("*").split(".")))
    pattern = ".*".join(map(re.escape, entry.split("*")))
    assert matches(entry, name) == bool(re.match(rf"(.*\.)?{pattern}(\..*)?$", name))


@pytest.mark.parametrize(
    "text",
    [
        "(",
        ")",
        "(a",
        "a)",
        "[",
        "[a",
        "[z-a]",
        "*",
        "+a",
        "a**",
        "a{2}{3}",
        "a*+",
        "\\",
        r"\q",
        r"(a)\1",
        "(?P<x>a)",
        "(?i)a",
        "(?<!a)b",
        "(?<=a)b",
        "a(?!b)",
        "(?!a)b|c",
        "(?>a)",
        "(?#x)",
        r"[a-\d]",
        "a{3,2}",
        "a{100000}",
        "(((a{99}){99}){99})",
        "((((((){99}){99}){99}){99}){99})",
        "(" * 50 + ")" * 50,
        "x" * (MAX_LENGTH + 1),
        "(?",
        "(?!",
        "(?!a",
        "\ud800(",
    ],
    ids=lambda text: ascii(text[:24]),
)
def test_what_is_not_read_is_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(LayoutError, match=r"config\.json: `re:[\s\S]* is no pattern: "):
        matches(f"re:{text}", "a")
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize(
    "entry",
    [
        "re:(a+)+$",
        "re:(a*)*$",
        "re:(a|a)*$",
        "re:(a|aa)+$",
        "re:" + "(.*a)" * 20 + "$",
        "re:(.*)*x",
        "re:(?!(a+)+$)(a+)+$",
        "re:" + "a?" * 60 + "a" * 60,
        "re:.*a.{300}$",
        "*a" * 200 + "*b",
        "re:" + "(a{1,30}){1,30}b",
        "re:(((a?){9}){9}){9}b",
    ],
)
def test_no_pattern_hangs(entry: str) -> None:
    start = time.process_time()
    pattern = Pattern(entry, Work())
    for at in range(20):
        pattern.matches("a" * 300 + f".{at}!")
    assert time.process_time() - start < 5


def test_patterns_that_stay_costly_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_WORK", 200_000)
    pattern, dice = Pattern("re:.*a.{100}$", Work()), random.Random(1)
    with pytest.raises(LayoutError, match=r"the patterns of config\.json are too costly to match"):
        for _ in range(1000):
            pattern.matches("".join(dice.choices("ab", k=300)))


def test_too_many_patterns_are_refused() -> None:
    work = Work()
    with pytest.raises(LayoutError, match=rf"config\.json has more than {MAX_PATTERNS} patterns of layers"):
        for at in range(MAX_PATTERNS + 1):
            Pattern(f"layers.{at}*", work)
