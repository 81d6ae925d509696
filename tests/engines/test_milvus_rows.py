"""How documents and words become rows of Milvus; without a server."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aveyb_retrieval import Retriever
from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.engines.milvus.connection import Address
from aveyb_retrieval.indexes.engines.milvus.postings import (
    BLOCK_TEXT,
    MANY,
    SegmentBuilder,
    join,
    keys_of,
    read_block,
    route_hash,
    term_key,
)
from aveyb_retrieval.indexes.engines.milvus.rows import PIECE_BYTES, pieces


@pytest.mark.parametrize("letter", ["a", "ж", "京", "😀"])
def test_a_long_text_is_cut_between_characters(letter: str) -> None:
    text = "x" + letter * 70_000
    found = pieces(text)
    assert "".join(found) == text
    assert len(found) > 1
    assert all(0 < len(piece.encode()) <= PIECE_BYTES for piece in found)
    assert pieces("") == [""]
    assert pieces("b" * PIECE_BYTES) == ["b" * PIECE_BYTES]


def build(documents: dict[int, dict[str, int]]) -> list[tuple[int, str]]:
    builder = SegmentBuilder()
    for number, counts in documents.items():
        builder.add(number, counts)
    blocks = list(builder.blocks())
    assert all(len(block) <= BLOCK_TEXT for _, block in blocks)
    return blocks


def look_up(blocks: list[tuple[int, str]], term: str) -> list[tuple[int, int, int]]:
    keys = keys_of(route_hash(term))
    parts = [read_block(block, [term_key(term)], [], "here") for key, block in blocks if key in keys]
    found = join([part[term_key(term)] for part in parts if part])
    return list(zip(found.numbers.tolist(), found.counts.tolist(), found.lengths.tolist(), strict=True))


@pytest.mark.parametrize(("documents", "vocabulary"), [(1, 5), (40, 300), (3000, 4000)])
def test_postings_come_back_as_they_were(documents: int, vocabulary: int) -> None:
    rng = random.Random(documents)
    rows = {
        n << 20 | n % 7: {f"w{int(rng.paretovariate(0.6)) % vocabulary}": rng.randint(1, 9) for _ in range(30)}
        for n in range(1, documents + 1)
    }
    rows = {number: {"every": 2, **counts} for number, counts in rows.items()}
    blocks = build(rows)
    for term in ("every", "nowhere", *rng.sample(sorted({t for counts in rows.values() for t in counts}), 5)):
        wanted = [(number, counts[term], sum(counts.values())) for number, counts in rows.items() if term in counts]
        assert look_up(blocks, term) == wanted
    if documents > MANY:
        keys = keys_of(route_hash("every"))
        assert {key for key, block in blocks if read_block(block, ["every"], [], "here")} == {keys[0]}


def test_very_long_terms_are_found_and_take_little() -> None:
    long = "ж" * 100_000
    blocks = build({1: {long: 3, "a": 1}, 2: {long[:-1]: 1}})
    assert look_up(blocks, long) == [(1, 3, 4)]
    assert look_up(blocks, long[:-1]) == [(2, 1, 1)]
    assert sum(len(block) for _, block in blocks) < 2000


def test_terms_of_a_script_without_spaces_are_found_by_their_first_character() -> None:
    blocks = build({1: {"京都": 1, "京大": 2}, 2: {"大京": 1}, 3: {"kyoto": 1}})
    keys = keys_of(route_hash("京"))
    found = [read_block(block, [], ["京"], "here") for key, block in blocks if key in keys]
    assert sorted(term for part in found for term in part) == ["京大", "京都"]


def test_a_damaged_block_is_an_error() -> None:
    ((_, block),) = build({1: {"a": 1}})
    for damaged in (block[:-8], "###", ""):
        with pytest.raises(IndexFormatError, match="here: damaged words"):
            read_block(damaged, ["a"], [], "here")


def test_nothing_gives_no_blocks() -> None:
    assert build({}) == build({1: {}}) == []
    assert not len(join([]).numbers)
    assert join([]).numbers.dtype == np.int64


# --- addresses --------------------------------------------------------------------------------------------------------


def test_addresses_name_a_server_or_a_file() -> None:
    found = Address.parse("milvus://ann:se%2Fcret@db.example:99/company/handbook?timeout=3&secure=true")
    assert (found.uri, found.database, found.token) == ("https://db.example:99", "company", "ann:se/cret")
    assert (found.collection, found.wait, found.is_lite) == ("handbook", 3, False)
    assert found.name == "milvus://ann@db.example:99/company/handbook"
    found = Address.parse("milvus://db.example/handbook")
    assert (found.uri, found.database, found.token) == ("http://db.example:19530", "", "")
    assert [found.is_eventual, Address.parse(f"{found.name}?consistency=eventually").is_eventual] == [False, True]
    found = Address.parse("milvus:///srv/a%20b/all.db/handbook")
    assert (found.uri, found.collection, found.is_lite) == ("/srv/a b/all.db", "handbook", True)
    assert found.name == "milvus:///srv/a%20b/all.db/handbook"


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("milvus://ann:secret@h", "milvus://USER@HOST"),
        ("milvus://ann:secret@h/", "milvus://USER@HOST"),
        ("milvus://ann:secret@h/a/b/c", "milvus://USER@HOST"),
        ("milvus://ann:secret@h/Upper", "cannot be the name"),
        ("milvus://ann:secret@h:port/x", "not an address"),
        ("milvus://ann:secret@h/x?timeout=soon", "not a number"),
        ("milvus://ann:secret@h/x?timeout=-1", "seconds above 0"),
        ("milvus://ann:secret@h/x?secure=maybe", "true or false"),
        ("milvus://ann:secret@h/x?consistency=weak", "strong or eventually"),
        ("milvus://ann:secret@h/x?sslmode=require", "sslmode"),
        ("milvus:///srv/handbook", r"FILE\.db/NAME"),
        ("milvus:///srv/all.db/", "cannot be the name"),
    ],
)
def test_what_is_no_address_is_refused(url: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        Retriever.load(url)
    assert "secret" not in str(caught.value)
