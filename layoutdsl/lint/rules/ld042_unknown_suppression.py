"""A comment to layoutdsl names no rule, or has another form than a suppression.

## Why is this bad

What is mistyped suppresses nothing, and a code that was never given may be given to another rule one day. Codes and
names are what `layoutdsl rule` lists; the beginning of a code is not enough, since it would also hide what nobody has
seen yet.

## Example

    checkpoint: gptq    # layoutdsl: ignore[LD30] stands in for the shipped spec in tests

## Use instead

    checkpoint: gptq    # layoutdsl: ignore[LD030] stands in for the shipped spec in tests
"""
