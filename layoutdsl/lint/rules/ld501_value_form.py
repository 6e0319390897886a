"""The value is none that a weight can have.

## Why is this bad

A weight is its code, less its zero point, times each of its scales once. The order matters: `q * s - z` takes the zero
point for a scaled one, and the two differ by a factor of the scale.

## Example

    value: qweight * scales - qzeros

## Use instead

    value: (qweight - qzeros) * scales
"""
