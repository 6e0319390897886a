"""A key without a value, `~` or `null`, or a file with nothing in it.

## Why is this bad

An empty value is mostly one that was forgotten. A key that shall have no value is left out, so that there is one way
to say it.

## Example

    w: {role: codes, dtype: int32, code: , order: "kw, n {kp}"}

## Use instead

    w: {role: codes, dtype: int32, code: u4b8, order: "kw, n {kp}"}

or `"null"` in quotes, where `detect` speaks of an entry that is absent.
"""
