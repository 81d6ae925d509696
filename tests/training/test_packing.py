from functools import partial
from pathlib import Path

import numpy as np
import pytest

from aveyb_retrieval.encoder.network.model import IGNORED_LABEL
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.pretraining import MaskedSequences, pack_texts
from tests.refusals import Refusal, refusals

from .conftest import SENTENCES


@pytest.fixture
def packed(tokenizer: AveyBTokenizer, tmp_path: Path) -> Path:
    pack_texts(
        SENTENCES,
        tokenizer,
        tmp_path / "train",
        tmp_path / "held",
        separator=tokenizer.sep_id,
        every=10,
    )
    return tmp_path / "train"


def test_packing_keeps_every_document(tokenizer: AveyBTokenizer, packed: Path) -> None:
    tokens = np.fromfile(packed, dtype="<i4")
    held = np.fromfile(packed.parent / "held", dtype="<i4")
    assert (tokens == tokenizer.sep_id).sum() + (held == tokenizer.sep_id).sum() == len(SENTENCES)
    assert tokenizer.decode(held[: np.flatnonzero(held == tokenizer.sep_id)[0]]) == SENTENCES[9]


def test_masking_is_a_function_of_seed_and_number(tokenizer: AveyBTokenizer, packed: Path) -> None:
    settings = {"length": 40, "mask_id": tokenizer.mask_id, "samples": 500}
    first = MaskedSequences(packed, seed=3, **settings)
    backwards = [MaskedSequences(packed, seed=3, **settings)[i] for i in (400, 7, 0)]
    for i, sample in zip((400, 7, 0), backwards, strict=True):
        assert first[i]["input_ids"].equal(sample["input_ids"]) and first[i]["labels"].equal(
            sample["labels"]
        )
    other = MaskedSequences(packed, seed=4, **settings)
    assert not first[0]["labels"].equal(other[0]["labels"])


def test_exactly_the_share_is_masked_and_labels_restore_the_text(
    tokenizer: AveyBTokenizer, packed: Path
) -> None:
    tokens = np.fromfile(packed, dtype="<i4")
    for i, sample in enumerate(MaskedSequences(packed, length=40, mask_id=tokenizer.mask_id)):
        asked = sample["labels"] != IGNORED_LABEL
        assert asked.sum() == 8
        assert (sample["input_ids"][asked] == tokenizer.mask_id).all()
        restored = sample["input_ids"].where(~asked, sample["labels"])
        assert restored.tolist() == tokens[i * 40 : (i + 1) * 40].tolist()


def test_an_epoch_sees_every_sequence_once_in_an_order_of_its_own(
    tokenizer: AveyBTokenizer, packed: Path
) -> None:
    once = MaskedSequences(packed, length=40, mask_id=tokenizer.mask_id)
    n = once.sequences
    run = MaskedSequences(packed, length=40, mask_id=tokenizer.mask_id, samples=2 * n)

    def whole(sample: dict) -> tuple[int, ...]:
        return tuple(
            sample["input_ids"].where(sample["labels"] == IGNORED_LABEL, sample["labels"]).tolist()
        )

    everything = sorted(whole(once[i]) for i in range(n))
    first, second = [whole(run[i]) for i in range(n)], [whole(run[i]) for i in range(n, 2 * n)]
    assert sorted(first) == sorted(second) == everything
    assert first != second


@refusals(
    {
        InputError: {
            "one sequence needs 1000000": lambda packed: MaskedSequences(
                packed, length=1_000_000, mask_id=0
            ),
        },
        ConfigError: {
            "mask_rate": [
                partial(MaskedSequences, length=40, mask_id=0, mask_rate=rate)
                for rate in (0.0, 1.0, 0.001)
            ],
        },
    }
)
def test_too_little_text_and_bad_rates_are_refused(packed: Path, refused: Refusal) -> None:
    refused(packed)
