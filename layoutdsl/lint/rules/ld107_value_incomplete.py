"""The value of a weight leaves out one of its tensors, or uses one that is no part of it.

## Why is this bad

The value is what conversions preserve. A scale that it leaves out would not be converted; a bias is added to outputs
and is no factor of a weight.

## Example

    tensors:
      w: {role: codes, ...}
      s: {role: scale, ...}
    value: w

## Use instead

    value: w * s
"""
