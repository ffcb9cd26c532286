"""Trees: leaves, layouts, and what cannot be batched."""

import pytest

from plangym_like.errors import InputError
from plangym_like.vector.tree import (
    layout_of,
)


def test_what_is_no_number_is_named_by_its_place() -> None:
    with pytest.raises(InputError, match=r"the value\['a'\]\[1\] is 'text'; only numbers"):
        layout_of({"a": (1, "text")})
