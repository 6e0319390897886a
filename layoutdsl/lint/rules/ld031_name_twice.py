"""Two specs of one folder have the same name.

## Why is this bad

A spec is found by its name. Of two, the first that is found wins, and which that is depends on the folders.

## Example

    formats/checkpoint/mine.yaml
    formats/kernel/mine.yaml

## Use instead

    formats/checkpoint/mine.yaml
    formats/kernel/mine_tiled.yaml
"""
