"""A second document in one file.

## Why is this bad

A spec is found by the name of its file, so a second one could not be found.

## Example

    version: "1"
    checkpoint: one
    ---
    version: "1"
    checkpoint: two

## Use instead

    # in one.yaml
    version: "1"
    checkpoint: one

and the other in `two.yaml`.
"""
