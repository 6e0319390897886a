"""A comment suppresses a finding and does not say why.

## Why is this bad

A finding that is suppressed was right about something. Without the reason, the next reader can only trust it or remove
it, and neither is a review.

## Example

    checkpoint: gptq    # layoutdsl: ignore[LD030]

## Use instead

    checkpoint: gptq    # layoutdsl: ignore[LD030] stands in for the shipped spec in tests
"""
