"""Packed texts: what is stored comes back, damage is refused, and batches depend on their number alone."""

from pathlib import Path

import numpy as np
import pytest
from packed import BatchOrder, PackedTexts, PartWriter, quantize

from aveyb_retrieval.errors import ConfigError, InputError

DIM = 24
GENERATOR = np.random.default_rng(0)
IDS = [GENERATOR.integers(0, 300, size).astype(np.int32) for size in GENERATOR.integers(1, 30, 50)]
VECTORS = GENERATOR.normal(size=(50, DIM)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
PAIRS = [(2 * i, 2 * i + 1) for i in range(12)]
FACTS = {"texts": "written in the tests", "teacher": "none", "vocabulary": "numbers"}


def pack(folder: Path, *, part_bytes: int = 1 << 20, storage_dtype: str = "int8", **facts: str) -> PartWriter:
    writer = PartWriter(folder, part_bytes=part_bytes, storage_dtype=storage_dtype)
    for number, (ids, vector) in enumerate(zip(IDS, VECTORS, strict=True)):
        writer.add(ids, vector)
        if number % 2 and number // 2 < len(PAIRS):
            writer.pair(number - 1, number)
    writer.finish(FACTS | facts)
    return writer


@pytest.mark.parametrize(("storage_dtype", "lowest"), [("int8", 0.9995), ("float16", 0.999999)])
def test_what_is_packed_comes_back(tmp_path: Path, storage_dtype: str, lowest: float) -> None:
    pack(tmp_path, storage_dtype=storage_dtype)
    texts = PackedTexts.load(tmp_path)
    assert all(texts.ids[texts.starts[i] : texts.starts[i + 1]].tolist() == ids.tolist() for i, ids in enumerate(IDS))
    stored = texts.vectors.astype(np.float32)
    assert ((stored * VECTORS).sum(1) / np.linalg.norm(stored, axis=1)).min() > lowest
    assert texts.pairs.tolist() == [list(pair) for pair in PAIRS]
    ids, mask = texts.padded([3, 7])
    assert ids.shape == mask.shape == (2, max(len(IDS[3]), len(IDS[7])))
    assert ids[1][mask[1]].tolist() == IDS[7].tolist() and not ids[~mask].any()


def test_parts_keep_to_their_size_and_the_same_texts_make_the_same_files(tmp_path: Path) -> None:
    writer = pack(tmp_path / "a", part_bytes=2048)
    assert len(writer.parts) > 1 and all(part.bytes <= 2048 for part in writer.parts)
    texts = PackedTexts.load(tmp_path / "a")
    assert texts.lengths.tolist() == [len(ids) for ids in IDS]
    assert len(texts.pairs) + writer.pairs_left_out == len(PAIRS)
    assert all(tuple(pair) in PAIRS for pair in texts.pairs)
    assert pack(tmp_path / "b", part_bytes=2048).parts == writer.parts
    first = PackedTexts.load(tmp_path / "a", [writer.parts[0].name])
    assert len(first.lengths) == writer.parts[0].texts and first.facts != texts.facts


def test_damage_and_nonsense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not hold all packed texts"):
        PackedTexts.load(tmp_path)
    pack(tmp_path)
    with pytest.raises(InputError, match=r"lists part-000\.safetensors; asked for: part-9"):
        PackedTexts.load(tmp_path, ["part-9"])
    part = tmp_path / "part-000.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"\x01")
    with pytest.raises(InputError, match=r"part-000\.safetensors has SHA-256"):
        PackedTexts.load(tmp_path)
    part.unlink()
    with pytest.raises(InputError, match=r"part-000\.safetensors is missing"):
        PackedTexts.load(tmp_path)
    with pytest.raises(ConfigError, match="storage_dtype is 'int4'"):
        PartWriter(tmp_path, part_bytes=100, storage_dtype="int4")
    writer = PartWriter(tmp_path / "new", part_bytes=1 << 20)
    for ids in ([], [70_000], [1] * 70_000):
        with pytest.raises(InputError, match="text 0 has"):
            writer.add(np.array(ids, np.int64), VECTORS[0])
    with pytest.raises(InputError, match="no texts to pack"):
        writer.finish(FACTS)
    for bad in (0.0, np.nan):
        with pytest.raises(InputError, match="keeps a cosine of nan"), np.errstate(invalid="ignore"):
            quantize(np.full((1, DIM), bad, np.float32), "float16")


def test_an_epoch_sees_every_pair_and_every_other_text_once(tmp_path: Path) -> None:
    pack(tmp_path)
    texts = PackedTexts.load(tmp_path)
    order = BatchOrder(texts, 2, seed=3)
    assert order.epoch_end(0) == 12 // 2 + 26 // 2
    epochs = [[order[epoch * order.epoch_end(0) + i] for i in range(order.epoch_end(0))] for epoch in (0, 1)]
    for batches in epochs:
        pairs = sorted(tuple(row) for batch in batches if batch.shape[1] == 2 for row in batch.tolist())
        singles = sorted(row[0] for batch in batches if batch.shape[1] == 1 for row in batch.tolist())
        assert pairs == PAIRS and singles == list(range(24, 50))
    assert [b.tolist() for b in epochs[0]] != [b.tolist() for b in epochs[1]]
    again = BatchOrder(texts, 2, seed=3)
    for number in (30, 4, 17):
        assert again[number].tolist() == order[number].tolist()
    assert [BatchOrder(texts, 2, seed=4)[i].tolist() for i in range(9)] != [order[i].tolist() for i in range(9)]
    with pytest.raises(InputError, match="12 pairs and 26 single texts are both less than one batch of 27"):
        BatchOrder(texts, 27, seed=0)


def test_folders_are_joined(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pack(tmp_path / name)
    one = PackedTexts.load(tmp_path / "a")
    assert PackedTexts.join([one]).facts["texts"] == [one.facts]
    both = PackedTexts.join([one, PackedTexts.load(tmp_path / "b", None)])
    assert both.lengths.tolist() == 2 * one.lengths.tolist() and both.starts[-1] == len(both.ids)
    assert both.pairs[len(one.pairs) :].tolist() == (one.pairs + 50).tolist()
    ids, mask = both.padded([7, 57])
    assert ids[0].tolist() == ids[1].tolist() and (both.vectors[7] == both.vectors[57]).all() and mask.all()
    pack(tmp_path / "other", teacher="another")
    with pytest.raises(InputError, match="name 2 kinds of teacher: none, another"):
        PackedTexts.join([one, PackedTexts.load(tmp_path / "other")])


def test_similar_texts_share_a_batch_and_each_is_seen_once() -> None:
    generator = np.random.default_rng(2)
    topics, size = generator.normal(size=(8, DIM)), 32
    of = generator.permutation(np.repeat(np.arange(8), size))
    vectors = (topics[of] + 0.1 * generator.normal(size=(len(of), DIM))).astype(np.float16)
    starts = np.arange(len(of) + 1) * 4
    texts = PackedTexts(np.zeros(starts[-1], np.uint16), starts, vectors, np.zeros((0, 2), np.int64), {}, starts[:-1])

    def topics_per_batch(similar: bool) -> float:
        order = BatchOrder(texts, 16, seed=0, batch_tokens=64, similar=similar)
        batches = [order[i].ravel() for i in range(order.epoch_end(0))]
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(of)))
        assert all(order[i].ravel().tolist() == batches[i].tolist() for i in (5, 0, 9))
        return float(np.mean([len(set(of[batch])) for batch in batches]))

    assert topics_per_batch(similar=False) > 5 and topics_per_batch(similar=True) < 3
