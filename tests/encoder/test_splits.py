"""The table of splits holds every token once, in groups that pad little."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aveyb_retrieval.encoder.splits import split_table


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 70), max_size=8), st.sampled_from([1, 4, 16, 32]))
def test_every_token_lands_in_its_split_and_every_split_in_one_group(counts: list[int], size: int) -> None:
    tokens = torch.arange(1, sum(counts) + 1)
    table, slots = split_table(tokens, torch.tensor(counts, dtype=torch.int64), size)
    assert torch.equal(table.ids.flatten()[slots], tokens)
    assert int(table.lengths.sum()) == len(tokens)

    documents = list(table.documents())
    rebuilt = [table.ids[d].flatten()[: int(table.lengths[d].sum())].tolist() for d in documents]
    expected = [part.tolist() for part in tokens.split(counts)] if counts else []
    assert rebuilt == [part for part in expected if part]

    seen: list[int] = []
    for rows, width in table.groups(full_width=False, max_tokens=3 * size):
        assert (table.lengths[rows] <= width).all()
        assert len(rows) * width <= max(3 * size, width)
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(table.lengths)))


def test_a_short_query_costs_its_own_length() -> None:
    table, _ = split_table(torch.arange(10), torch.tensor([10]), 256)
    assert [(rows.tolist(), width) for rows, width in table.groups(full_width=False, max_tokens=4096)] == [([0], 10)]


def test_only_needed_splits_are_grouped() -> None:
    table, _ = split_table(torch.arange(100), torch.tensor([60, 40]), 16)
    needed = torch.zeros(7, dtype=torch.bool)
    needed[[2, 6]] = True
    rows = [row for group, _ in table.groups(needed, full_width=False, max_tokens=4096) for row in group.tolist()]
    assert sorted(rows) == [2, 6]
