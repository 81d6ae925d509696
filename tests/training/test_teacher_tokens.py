"""The teacher's vectors of tokens: aligned by characters, cached in shards, refused for another vocabulary."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from teacher_tokens import encode_tokens, label_tokens, overlaps, read_token_vectors

from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.training.teacher import cache_vectors, load_teacher, read_vectors

from .conftest import SENTENCES, tiny_config

TEXTS = [" " + text for text in SENTENCES[:25]]


@pytest.fixture(scope="module")
def teacher(tokenizer: AveyBTokenizer, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("teacher")
    sentence_transformer(AveyBModel(tiny_config(hidden_size=48)), tokenizer, folder)
    return str(folder)


def characters(text: str) -> tuple[np.ndarray, np.ndarray]:
    """A student whose tokens are single characters."""
    places = np.arange(len(text))
    return np.array([ord(c) for c in text]), np.stack([places, places + 1], axis=1)


ENCODE = partial(label_tokens, tokenize=characters, precision="float32")


def test_overlaps_count_shared_characters() -> None:
    student = np.array([[0, 4], [4, 4], [4, 9], [9, 12]])
    teacher = np.array([[0, 0], [1, 3], [3, 6], [6, 9]])
    assert overlaps(student, teacher).tolist() == [[0, 2, 1, 0], [0, 0, 0, 0], [0, 0, 2, 3], [0, 0, 0, 0]]


def test_a_students_token_has_the_mean_of_what_the_teacher_says_there(
    teacher: str, tokenizer: AveyBTokenizer, tmp_path: Path
) -> None:
    loaded, _ = load_teacher(teacher, device="cpu", max_tokens=256)
    same = encode_tokens(loaded, TEXTS, tokenizer.encode, "float32")
    single = encode_tokens(loaded, TEXTS, characters, "float32")
    expected = loaded.encode(TEXTS)
    assert np.abs(same.texts.astype(np.float32) - expected).max() < 1e-3
    starts = np.cumsum([0, *(len(text) for text in TEXTS)])
    place = 0
    for number, text in enumerate(TEXTS):
        ids, offsets = tokenizer.encode(text)
        with torch.inference_mode():
            hidden = loaded[0].auto_model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0]
        for (start, end), vector in zip(offsets, hidden.numpy(), strict=True):
            stored = same.tokens[place].astype(np.float32) * same.scales[place].astype(np.float32)
            if start == end:  # a capital's mark stands for no character
                assert not stored.any()
            else:
                assert np.abs(stored - vector).max() < 0.01 * np.abs(vector).max()
                alone = slice(starts[number] + start, starts[number] + end)
                each = single.tokens[alone].astype(np.float32) * single.scales[alone, None].astype(np.float32)
                assert np.abs(each - vector).max() < 0.01 * np.abs(vector).max()
            place += 1


def test_the_cache_goes_on_and_is_read_across_shards(teacher: str, tmp_path: Path) -> None:
    options = {"encode": ENCODE, "vocabulary": "characters", "model": teacher, "shard_size": 10}
    for part in ((1, 2), (0, 2)):
        cache_vectors(TEXTS, tmp_path, part=part, **options)
    whole = read_token_vectors(tmp_path, vocabulary="characters")
    assert len(whole) == sum(map(len, TEXTS)) and read_vectors(tmp_path).shape == (25, 48)
    border = sum(len(text) for text in TEXTS[:10])
    across = whole[slice(border - 3, border + 3)]
    assert across.shape == (6, 48) and np.array_equal(across[:3], whole[slice(border - 3, border)])
    (tmp_path / "vectors-00001.npy").unlink()  # killed before the shard was complete
    assert len(read_token_vectors(tmp_path, vocabulary="characters")) == border
    cache_vectors(TEXTS, tmp_path, **options)
    again = read_token_vectors(tmp_path, vocabulary="characters")
    assert np.array_equal(again[slice(0, len(again))], whole[slice(0, len(whole))])


def test_other_words_and_damage_are_refused(teacher: str, tmp_path: Path) -> None:
    options = {"encode": ENCODE, "model": teacher, "shard_size": 10}
    cache_vectors(TEXTS, tmp_path, vocabulary="characters", **options)
    with pytest.raises(InputError, match="for the vocabulary characters, the texts were packed with words"):
        read_token_vectors(tmp_path, vocabulary="words")
    with pytest.raises(InputError, match="vocabulary"):
        cache_vectors(TEXTS, tmp_path, vocabulary="words", **options)
    np.save(tmp_path / "tokens-00000.npy", np.zeros((3, 48), np.int8))
    with pytest.raises(InputError, match=r"tokens-00000\.npy has shape \(3, 48\)"):
        read_token_vectors(tmp_path, vocabulary="characters")
