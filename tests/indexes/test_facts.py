"""What engines know of metadata: the same elements that an index looks at."""

from __future__ import annotations

from aveyb_retrieval.engines.rows import describe


def test_elements_of_lists_in_a_list_count_as_its_own() -> None:
    flat, nested = describe({"m": [1, 2, "a"]}), describe({"m": [[1, 2], ["a"]]})
    assert (set(nested[0]), nested[1]) == (set(flat[0]), flat[1])
    deeper = describe({"m": [[[1]]]})
    assert set(deeper[0]) < set(describe({"m": [1]})[0])
    assert deeper[1] == {}
