"""What another engine's weight preparation gets wrong, and what we do there: right, or refused in one sentence.

A, silently wrong numbers (layout and scales apart), B, crashes, C, accepted without a kernel, D, refused though it can
be done, E, right by luck. Targets are read by decoders written apart from the library (see ../conversions.py).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from layoutdsl import LayoutError


def refusal(call: Callable[[], object], *words: str) -> None:
    """The call is refused, in a sentence with these words, and with a way out."""
    with pytest.raises(LayoutError) as caught:
        call()
    error = caught.value
    assert error.help, f"no way out: {error.message}"
    said = f"{error.message} ({error.help})"
    missing = [word for word in words if word not in said]
    assert not missing, f"lacks {missing}: {said}"
