"""An axis or a tensor is named that the spec does not have.

## Why is this bad

Formats lie over n (outputs) and k (inputs), modules over the axes that they list; a value uses the tensors of its own
spec. Any other name is a mistake, and a rank that cuts an unknown axis would cut none.

## Example

    value: (qweight - zeros) * scales    # the tensor is `qzeros`

## Use instead

    value: (qweight - qzeros) * scales
"""

ALSO = ("unknown-tensor",)
