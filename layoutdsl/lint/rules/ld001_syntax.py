"""The text is no YAML.

## Why is this bad

Nothing can be said of a text that cannot be read. Of what stands before the place, all other findings are made in the
same run.

## Example

    tensors:
      w: {role: codes, order: "kw, n {kp}"
    value: w * s

## Use instead

    tensors:
      w: {role: codes, order: "kw, n {kp}"}
    value: w * s
"""
