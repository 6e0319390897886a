"""The base of a kernel is a spec of another kind.

## Why is this bad

A build takes its tensors and the shapes it accepts from its base; only a kernel has these.

## Example

    kernel: marlin_mine
    base: gptq

## Use instead

    kernel: marlin_mine
    base: marlin_int4_a16
"""
