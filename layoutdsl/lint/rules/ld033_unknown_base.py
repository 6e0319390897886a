"""The base of a kernel is not found, or is no name.

## Why is this bad

A build has its tensors from its base, so without it there is nothing to check. A base is a name, not a path, since a
spec may come from a stranger and must not open files elsewhere.

## Example

    base: ../kernel/marlin_int4_a16.yaml

## Use instead

    base: marlin_int4_a16

A base is looked for next to the file, in the folders of `--specs`, and among the shipped specs.
"""
