import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, InputError, ModelError
from aveyb_retrieval.training.teacher import cache_vectors, load_teacher, read_vectors
from tests.refusals import Refusal, refusals

from ..wordpiece import save_teacher, save_vocabulary
from .conftest import SENTENCES, make_student

TEXTS = SENTENCES[:25]


@pytest.fixture(scope="module")
def teacher(tokenizer: AveyBTokenizer, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("teacher")
    make_student(folder, tokenizer, hidden_size=48)
    return str(folder)


@pytest.fixture(scope="module")
def cache(teacher: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The teacher's vectors of all texts, in three files."""
    return cache_vectors(TEXTS, tmp_path_factory.mktemp("cache"), model=teacher, shard_size=10)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher of another kind, with a vocabulary of its own."""
    return save_teacher(tmp_path_factory.mktemp("foreign"), SENTENCES)


def test_cache_holds_the_teachers_vectors(teacher: str, cache: Path) -> None:
    from sentence_transformers import SentenceTransformer

    vectors = read_vectors(cache)
    assert vectors.shape == (25, 48) and vectors.dtype == np.float16
    expected = SentenceTransformer(teacher, device="cpu").encode(TEXTS)
    assert np.abs(vectors - expected).max() < 1e-3


def test_goes_on_where_it_was(teacher: str, cache: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(cache, tmp_path / "cache")
    (folder / "vectors-00001.npy").unlink()
    kept = (folder / "vectors-00000.npy").stat().st_mtime_ns
    with pytest.raises(InputError, match=r"vectors-00001\.npy is missing"):
        read_vectors(folder)
    cache_vectors(TEXTS, folder, model=teacher, shard_size=10)
    assert np.array_equal(read_vectors(folder), read_vectors(cache))
    assert (folder / "vectors-00000.npy").stat().st_mtime_ns == kept


def test_queries_and_documents_have_prompts_of_their_own(teacher: str, tmp_path: Path) -> None:
    def read(name: str, kind: str, prompts: tuple[str, str] | None = None) -> np.ndarray:
        return read_vectors(
            cache_vectors(TEXTS, tmp_path / name, model=teacher, kind=kind, prompts=prompts)
        )

    prompts = ("who: ", "what: ")
    plain, query, document = (
        read("plain", "query"),
        read("q", "query", prompts),
        read("d", "document", prompts),
    )
    assert np.array_equal(plain, read("same", "document"))
    assert not np.allclose(query, plain, atol=1e-2) and not np.allclose(query, document, atol=1e-2)
    assert np.array_equal(query, read("q", "query", prompts))
    with pytest.raises(InputError, match="'prompts'"):
        read("q", "query", ("why: ", "what: "))


@refusals(
    {
        InputError: {
            "texts_sha256": partial(cache_vectors, [*TEXTS[:-1], "changed"]),
            "precision": partial(cache_vectors, TEXTS, precision="bfloat16"),
        },
        ConfigError: {
            "precision is 'int3'": partial(cache_vectors, TEXTS, precision="int3"),
        },
    }
)
def test_another_cache_is_refused(teacher: str, cache: Path, refused: Refusal) -> None:
    refused(folder=cache, model=teacher, shard_size=10)


def cut_a_shard(folder: Path) -> None:
    np.save(folder / "vectors-00002.npy", np.zeros((5, 7), dtype=np.float16))


def change_the_description(folder: Path) -> None:
    (folder / "teacher.json").write_text(json.dumps({"teacher": "x"}))


@refusals(
    {
        InputError: {
            "does not hold teacher vectors": shutil.rmtree,
            r"has shape \(5, 7\), \(5, 48\) is expected": cut_a_shard,
            "cannot be read": change_the_description,
        },
    }
)
def test_damage_is_named(cache: Path, tmp_path: Path, refused: Refusal) -> None:
    refused.then(read_vectors, shutil.copytree(cache, tmp_path / "cache"))


def lack_embeddings(folder: Path) -> None:
    save_vocabulary(folder, SENTENCES, rows=220)


def lack_a_vocabulary(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()  # transformers makes an empty one


def cut_the_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"cut")


@refusals(
    {
        ModelError: {
            "teacher .*other: sentence-transformers cannot load it": shutil.rmtree,
            "vocabulary has tokens that its embeddings lack": lack_embeddings,
            "other: its vocabulary holds no words": lack_a_vocabulary,
            "other: sentence-transformers cannot load it": cut_the_weights,
        },
    }
)
def test_a_damaged_teacher_is_refused(foreign: Path, tmp_path: Path, refused: Refusal) -> None:
    folder = shutil.copytree(foreign, tmp_path / "other")
    refused.then(lambda folder: cache_vectors(TEXTS, tmp_path / "cache", model=str(folder)), folder)


def test_a_teachers_own_limit_and_prompts_stay(teacher: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    own = SentenceTransformer(teacher, device="cpu")
    own.max_seq_length, own.prompts = 5, {"query": "ask: ", "document": "read: "}
    own.save(str(tmp_path / "own"), create_model_card=False)
    loaded, name = load_teacher(str(tmp_path / "own"), device="cpu", max_tokens=256)
    assert (
        loaded.max_seq_length == 5
        and load_teacher(str(tmp_path / "own"), device="cpu", max_tokens=3)[0].max_seq_length == 3
    )
    assert (
        name.rpartition("@")[2]
        != load_teacher(teacher, device="cpu", max_tokens=256)[1].rpartition("@")[2]
    )
    cached = read_vectors(cache_vectors(TEXTS, tmp_path / "cache", model=str(tmp_path / "own")))
    assert np.allclose(cached, own.encode_document(TEXTS, normalize_embeddings=True), atol=2e-3)


def test_a_table_of_vectors_teaches(teacher: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    table = StaticEmbedding(
        Tokenizer.from_file(str(Path(teacher) / "tokenizer.json")), embedding_dim=6
    )
    SentenceTransformer(modules=[table], device="cpu").save(
        str(tmp_path / "table"), create_model_card=False
    )
    cached = read_vectors(cache_vectors(TEXTS, tmp_path / "cache", model=str(tmp_path / "table")))
    assert cached.shape == (len(TEXTS), 6)
