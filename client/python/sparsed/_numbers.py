"""Numbers that calls take, looked at before the library gets them."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

from sparsed._errors import InvalidArgument, InvalidType

# What 64 bits hold in nanoseconds: 292 years.
_MOST_SECONDS = 2**63 // 10**9 - 1
_MOST_COUNT = 2**31 - 1


def seconds(value: Any, what: str, least: str = "more than 0", none: str = "") -> float:
    """`value`, finite, and not below 0. `least`: "more than 0" or "0 or more". `none`: what None
    would mean, for the sentence."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidType(f"{what} is a {type(value).__name__}, expected seconds{none}")
    found = float(value)
    if math.isfinite(found) and 0 <= found <= _MOST_SECONDS and (found or least == "0 or more"):
        return found
    raise InvalidArgument(
        f"{what} is {value!r}, expected {least} seconds, and 292 years at the most{none}"
    )


def nanoseconds(value: Any, what: str, none: str) -> int:
    """Of seconds; 0 of None."""
    if value is None:
        return 0
    return max(1, int(seconds(value, what, none=none) * 1e9))


def number(value: Any, what: str) -> float:
    """`value`, a factor; it may be infinite, or not a number."""
    if isinstance(value, numbers.Real):
        return float(value)
    raise InvalidType(f"{what} is a {type(value).__name__}, expected a number")


def count(value: Any, what: str, least: int = 1, most: int = _MOST_COUNT) -> int:
    """`value`, a whole number."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None:
        raise InvalidType(f"{what} is a {type(value).__name__}, expected a whole number")
    if not least <= found <= most:
        expected = f"{least} or more" if found < least else f"{most} at the most"
        raise InvalidArgument(f"{what} is {found}, expected {expected}")
    return found
