"""Which files are made when: few of them, each vector indexed a few times, deleted ones cleared
away.
"""

from __future__ import annotations

import itertools
import math
import random

from aveyb_retrieval.indexes.nearest import faiss_file
from aveyb_retrieval.indexes.nearest.due_files import MAX_TIERS, plan
from aveyb_retrieval.indexes.store.manifest import Tier

DIM = 256
LIMIT = faiss_file.exact_limit(DIM)


def tier(first: int, stop: int, count: int, dead: int = 0) -> Tier:
    return Tier("passage", f"faiss/{first}-{stop}", "Flat", first, stop, count, dead=dead)


def replaced(tiers: list[Tier], made: list[Tier]) -> list[Tier]:
    """The files after some were made."""
    kept = [t for t in tiers if not any(m.first <= t.first and t.stop <= m.stop for m in made)]
    return sorted(kept + made, key=lambda t: t.first)


def test_up_to_a_size_nothing_is_made_unless_a_type_is_named() -> None:
    assert plan([], "passage", 5000, LIMIT, "auto", DIM) == []
    assert plan([], "passage", 5000, LIMIT + 1, "auto", DIM) == [(0, 5000)]
    assert plan([], "passage", 7, 7, "HNSW32", DIM) == [(0, 7)]
    assert plan([], "passage", 7, 0, "HNSW32", DIM) == []
    assert plan([tier(0, 5, 10)], "passage", 9, LIMIT, "HNSW32", DIM) == []
    other = [Tier("document", "faiss/d", "Flat", 0, 5, 5)]
    assert plan(other, "passage", 9, 10, "auto", DIM) == []


def test_rebuilding_is_one_file_or_none() -> None:
    tiers = [tier(0, 100, LIMIT * 3), tier(100, 150, LIMIT)]
    assert plan(tiers, "passage", 160, LIMIT * 4, "auto", DIM, rebuild=True) == [(0, 160)]
    assert plan(tiers, "passage", 160, LIMIT // 2, "auto", DIM, rebuild=True) == []
    assert plan(tiers, "passage", 160, 9, "Flat", DIM, rebuild=True) == [(0, 160)]


def test_a_file_with_many_deleted_vectors_is_made_again_alone() -> None:
    big, small = LIMIT * 10, LIMIT * 2
    worn = [tier(0, 100, big, dead=big // 4), tier(100, 150, small)]
    assert plan(worn, "passage", 151, big - big // 4 + small, "auto", DIM) == [(0, 100)]
    fine = [tier(0, 100, big, dead=big // 6), tier(100, 150, small)]
    assert plan(fine, "passage", 151, big - big // 6 + small, "auto", DIM) == []
    last = [tier(0, 100, big), tier(100, 150, small, dead=small // 3)]
    assert plan(last, "passage", 151, big + small - small // 3, "auto", DIM) == [(100, 150)]
    gone = [tier(0, 100, big, dead=big)]
    assert plan(gone, "passage", 151, 0, "auto", DIM) == []


def test_single_adds_and_deletions_keep_files_few_and_work_small() -> None:
    rng = random.Random(0)
    dim = 256 * LIMIT // 20  # so that 20 vectors are enough for a file
    assert faiss_file.exact_limit(dim) == 20
    tiers: list[Tier] = []
    stored: set[int] = set()
    indexed = 0
    steps = 20_000
    for doc in range(steps):
        stored.add(doc)
        if rng.random() < 0.1:
            gone = rng.randrange(doc + 1)
            if gone in stored:
                stored.remove(gone)
                tiers = [
                    tier(t.first, t.stop, t.count, t.dead + 1) if t.first <= gone < t.stop else t
                    for t in tiers
                ]
        made = []
        for first, stop in plan(tiers, "passage", doc + 1, len(stored), "auto", dim):
            count = sum(number in stored for number in range(first, stop))
            indexed += count
            made.append(tier(first, stop, count))
        if made:
            tiers = replaced(tiers, made)
            assert all(a.stop == b.first for a, b in itertools.pairwise(tiers))
            assert tiers[0].first == 0
        assert len(tiers) <= MAX_TIERS
        assert len(stored) - sum(t.count - t.dead for t in tiers) <= 20
        assert all(t.dead <= 0.2 * t.count for t in tiers)
    assert indexed < steps * 2 * math.log2(steps / 20)


def test_auto_scans_all_codes_up_to_a_size_and_then_a_quarter_of_its_lists() -> None:
    assert faiss_file.chosen("auto", 50_000) == ("IVF1,RaBitQfs", {})
    assert faiss_file.chosen("auto", 4_000_000) == ("IVF2048,RaBitQfs", {"nprobe": 512})
    assert faiss_file.chosen("HNSW32", 4_000_000) == ("HNSW32", {})
    assert faiss_file.chosen("HNSW32;efSearch=64;rescore=9", 5) == (
        "HNSW32",
        {"efSearch": 64, "rescore": 9},
    )
