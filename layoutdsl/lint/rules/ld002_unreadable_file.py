"""A file cannot be read: it is not there, not UTF-8, a folder, or larger than one mebibyte.

## Why is this bad

A check that skips what it cannot open looks like a clean one. The size is bounded because a spec may come from
anyone; the largest that ships has some 60 lines.

## Example

    $ layoutdsl lint formats/mine.yml

where the file is `formats/mine.yaml`.

## Use instead

    $ layoutdsl lint formats

A folder stands for every `*.yaml` file in it.
"""
