"""The parts of a matrix are named twice: by the keys of `n`, and by `parts`.

## Why is this bad

Two lists of the same names can disagree, in their order above all, and the order decides which rows are the gate.

## Example

    qkv: {n: {q: q dq, k: kv dq, v: kv dq}, k: h, parts: [q, k, v]}

## Use instead

    qkv: {n: {q: q dq, k: kv dq, v: kv dq}, k: h}
"""
