"""The table of splits holds every token once, in groups that pad little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aveyb_retrieval.encoder.network.layout import SplitLayout
from aveyb_retrieval.encoder.network.splits import padded_table, split_table

if TYPE_CHECKING:
    from random import Random

COUNTS = st.lists(st.integers(0, 70), max_size=8)


@settings(max_examples=100, deadline=None)
@given(COUNTS, st.sampled_from([1, 4, 16, 32]))
def test_every_token_lands_in_its_split_and_every_split_in_one_group(
    counts: list[int], size: int
) -> None:
    tokens = torch.arange(1, sum(counts) + 1)
    table = split_table(tokens, counts, size)
    layout = table.layout
    taken = np.concatenate([np.arange(s.start, s.stop) for s in layout.taken()]) if counts else []
    assert torch.equal(table.ids.flatten()[taken], tokens)
    assert int(table.lengths.sum()) == len(tokens) == int((table.ids > 0).sum())

    rebuilt = [
        table.ids[d].flatten()[: int(table.lengths[d].sum())].tolist() for d in layout.documents()
    ]
    expected = [part.tolist() for part in tokens.split(counts)] if counts else []
    assert rebuilt == [part for part in expected if part]

    seen: list[int] = []
    slots: list[int] = []
    for group in table.groups(full_width=False, max_tokens=3 * size):
        lengths = table.lengths[group.rows]
        assert (lengths <= group.width).all()
        assert (group.tokens is None) == bool((lengths == group.width).all())
        assert len(group.rows) * group.width <= max(3 * size, group.width)
        assert group.alone == bool((group.rows == table.first[group.rows]).all())
        seen += group.rows.tolist()
        slots += table.slots(group).tolist()
    assert sorted(seen) == list(range(len(table.lengths)))
    assert sorted(slots) == list(taken)


@settings(max_examples=50, deadline=None)
@given(COUNTS, st.sampled_from([1, 4, 16, 32]), st.randoms(use_true_random=False))
def test_the_table_of_a_padded_batch_is_that_of_its_texts(
    counts: list[int], size: int, random: Random
) -> None:
    width = max(counts, default=0) + 3
    present = np.zeros((len(counts), width), dtype=bool)
    for row, count in zip(present, counts, strict=True):
        row[random.sample(range(width), count)] = True  # padding anywhere
    ids = torch.arange(1, present.size + 1).view(present.shape)
    wanted = split_table(ids[torch.from_numpy(present)], counts, size)
    table, places = padded_table(ids, present, size)
    assert torch.equal(table.ids, wanted.ids)
    assert torch.equal(table.lengths, wanted.lengths)
    assert torch.equal(table.first, wanted.first)
    assert torch.equal(
        ids.flatten()[places].view_as(table.ids)[table.ids > 0], table.ids[table.ids > 0]
    )
    if present.all():
        assert torch.equal(padded_table(ids, None, size)[0].ids, wanted.ids)


def test_a_short_query_costs_its_own_length() -> None:
    groups = SplitLayout.of([10], 256).groups(full_width=False, max_tokens=4096)
    assert [(rows.tolist(), width) for rows, width in groups] == [([0], 10)]
