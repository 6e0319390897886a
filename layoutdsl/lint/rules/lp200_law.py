"""A law of plans does not hold: the spec's layout loses, repeats or misreads an element.

## Why is this bad

A spec is proven against a form of itself in which every element stands apart. Where that fails, some element has no
place, shares one with another, or changes its value on the way. [The laws](laws.md) say what each of them rules out.

## Example

    split: "k = g gi:32"
    order: "gi, n (g)"    # all groups share their scales

## Use instead

    split: "k = g gi:32"
    order: "g, n (gi)"
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
