"""A value is checked against its type, and the message says what it must be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from msgspec import Meta, Struct

from aveyb_retrieval import ConfigError
from aveyb_retrieval.checks import check_attributes, check_value, must_be

Share = Annotated[float, Meta(ge=0, le=1)]
TAKEN = [
    (0.5, Share),
    (1, Share),
    (np.float32(0.5), Share),
    (np.int64(3), int),
    (np.bool_(True), bool),
    (10**30, Annotated[int, Meta(ge=1)]),
    (None, Annotated[int, Meta(ge=1)] | None),
    ("a", Literal["b", "a"]),
]


@pytest.mark.parametrize(("value", "annotated"), TAKEN, ids=str)
def test_what_fits_is_taken(value, annotated):
    check_value("x", value, annotated)


REFUSED = [
    (2, Share, "x=2: must be a number from 0 to 1"),
    (float("nan"), Share, "x=nan: must be a number from 0 to 1"),
    (True, Annotated[int, Meta(ge=1)], "x=True: must be a whole number of at least 1"),
    (2.0, int, "x=2.0: must be a whole number"),
    (0, Annotated[int, Meta(ge=1, le=5000)], "x=0: must be a whole number from 1 to 5,000"),
    (-1, Annotated[int, Meta(ge=0)] | None, "x=-1: must be a whole number of at least 0"),
    ("c", Literal["b", "a"], "x='c': must be one of 'b', 'a'"),
    ("c", Literal["b"] | None, "x='c': must be one of 'b', None"),
    (1, bool, "x=1: must be True or False"),
    (1, dict[str, Any], "x=1: must be an object"),
    (1, str, "x=1: must be a text"),
    (1, Annotated[int, Meta(ge=2, extra={"must_be": "even"})], "x=1: must be even"),
]


@pytest.mark.parametrize(("value", "annotated", "message"), REFUSED, ids=str)
def test_what_does_not_fit_is_refused(value, annotated, message):
    with pytest.raises(ConfigError) as raised:
        check_value("x", value, annotated)
    assert str(raised.value) == message


def test_json_has_words_of_its_own():
    assert must_be(bool, in_json=True) == "true or false"
    assert must_be(Literal["a"] | None, in_json=True) == "one of 'a', null"


class Types(Struct):
    count: Annotated[int, Meta(ge=1)]
    share: Share


def test_attributes_are_checked_by_the_fields_of_their_names():
    check_attributes(SimpleNamespace(count=1, share=0.5, other="a"), Types)
    check_attributes(SimpleNamespace(count=np.int64(1), share=np.float32(0.5)), Types)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"count": 0, "share": 0.5}, "count=0: must be"),
        ({"count": 1, "share": 2}, "share=2: must be"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(attributes, message):
    with pytest.raises(ConfigError, match=message):
        check_attributes(SimpleNamespace(**attributes), Types)
