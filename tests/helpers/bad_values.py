"""Invalid values for any input, and a check that each gets a message."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gaudi_serve.core.errors import InputError
from hypothesis import strategies as st

# With such input, quadratic code takes hours; fast code on a busy machine takes seconds.
FOREVER_S = 30
ODD = st.sampled_from([None, "", "x", "8", -1, 0, 1, 3, 10**30, 10**400, 0.5, 1e308, 1e-320, math.nan, math.inf])
GARBAGE = ODD | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


def sentence(function: Callable[[], Any]) -> str:
    """Return the one-line message of an InputError, or an empty text; any other exception fails the test."""
    try:
        function()
    except InputError as problem:
        text = str(problem)
        assert text and "\n" not in text
        return text
    return ""
