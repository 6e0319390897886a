"""A comment suppresses a finding that is not there.

## Why is this bad

Once the finding is gone, the comment hides the next one: whoever makes the same mistake at that place is not told. It
also says of a spec that it is odd where it is not. `--fix` removes it.

## Example

    checkpoint: gptq_mine    # layoutdsl: ignore[LD030] named as in the release

where the file is `gptq_mine.yaml` by now.

## Use instead

    checkpoint: gptq_mine
"""
