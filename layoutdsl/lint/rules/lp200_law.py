"""A law of plans does not hold: the spec's layout loses, repeats or misreads an element.

## Why is this bad

A spec is proven against a form of itself in which every element stands apart. Where that fails, some element has no
place, shares one with another, or changes its value on the way. [The laws](laws.md) say what each of them rules out.

## Example

    split: "k = kw kp:8"
    order: "kw (n) {kp}"    # all outputs share their codes

## Use instead

    split: "k = kw kp:8"
    order: "kw, n {kp}"
"""

ALSO = (
    "law-header",
    "law-agree",
    "law-meaning",
    "law-complete",
    "law-once",
    "law-value",
    "law-neutral",
    "law-duties",
)
