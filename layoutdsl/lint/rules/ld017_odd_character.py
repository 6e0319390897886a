r"""A character that shows as nothing, or that turns the order of what is shown.

## Why is this bad

A name with a zero-width space looks like one without, and a text that is shown in another order reads as another
spec in a review.

## Example

    doc: "GPTQ\u202E, 4 bit"

## Use instead

    doc: GPTQ, 4 bit
"""
