"""A search finds what brute force finds, whatever lies in FAISS files, in memory, or is gone."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import faiss
import numpy as np
import pytest

from aveyb_retrieval import Index, Retriever, verify_index
from aveyb_retrieval.encoder.embedders import embedder
from aveyb_retrieval.errors import BackendError, ConfigError, IndexFormatError
from aveyb_retrieval.indexes.changes import sync
from aveyb_retrieval.indexes.changes.sync import sync_index
from aveyb_retrieval.indexes.changes.update import Batch, build_index
from aveyb_retrieval.indexes.nearest import due_files, faiss_file, tiers
from aveyb_retrieval.indexes.nearest.due_files import make_tier
from aveyb_retrieval.indexes.nearest.faiss_file import FaissSearcher, copied_to_cards
from aveyb_retrieval.indexes.nearest.tiers import VectorSearcher
from aveyb_retrieval.indexes.store.place import read_manifest
from aveyb_retrieval.indexes.types import number_range
from tests import one_change
from tests.indexes.fake import FakeEmbedder
from tests.indexes.nearest.fake import FakeVectors, unit
from tests.recorder import record_calls
from tests.refusals import Refusal, refusals

if TYPE_CHECKING:
    from pathlib import Path

    from aveyb_retrieval.indexes.store.manifest import Tier
    from aveyb_retrieval.indexes.types import Kind

DIM = 24
COSTLY = "OPQ6,IVF4,PQ6x4"  # its training takes far longer than the others'
FACTORIES = (
    "auto",
    "Flat",
    "SQ8",
    "HNSW16",
    "IVF8,Flat",
    "IVF8,SQ8",
    "IVF8,RaBitQfs",
    "RaBitQfs",
    "IVF4,PQ6x4fs",
    COSTLY,
    "PCA16,HNSW8",
)
# its training takes half a minute
SLOW = pytest.param("OPQ6,IVF4,PQ6", "passage", marks=pytest.mark.slow)


def with_dead(made: list[Tier], stored: FakeVectors) -> list[Tier]:
    """Tiers as a manifest describes them after deletions."""
    found = []
    for tier in made:
        low, high = np.searchsorted(stored.numbers, number_range(tier.kind, tier.first, tier.stop))
        found.append(dataclasses.replace(tier, dead=tier.count - int(high - low)))
    return found


def queries_near(vectors: FakeVectors, n: int, seed: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = vectors.rows[rng.choice(len(vectors.rows), n)]
    return unit(rows + 0.1 * rng.normal(size=rows.shape))


def recall(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean([np.isin(t, f).mean() for t, f in zip(truth, found, strict=True)]))


@pytest.mark.parametrize(
    ("factory", "kind"),
    [
        *((factory, "passage") for factory in FACTORIES),
        ("auto", "document"),
        ("HNSW16", "document"),
        SLOW,
    ],
)
def test_tiers_and_memory_and_deletions_together_find_what_brute_force_finds(
    factory: str, kind: Kind, tmp_path: Path
) -> None:
    count = 600 if factory == COSTLY else 3000
    one, two = count // 2, count * 4 // 5
    whole = FakeVectors.random(kind, count, DIM)
    made = [
        make_tier(tmp_path, f"faiss/{i}.faiss", kind, first, stop, whole, one, factory)[0]
        for i, (first, stop) in enumerate([(0, one), (one, two)])
    ]
    assert [tier.count for tier in made] == [
        len(whole.before(one).rows),
        len(whole.before(two).rows) - made[0].count,
    ]
    rng = np.random.default_rng(1)
    queries = queries_near(whole, 25)
    for gone in (0.0, 0.15):
        stored = whole.without(rng.random(len(whole.numbers)) < gone)
        nearest = VectorSearcher.open(
            tmp_path, kind, with_dead(made, stored), stored, len(stored.rows)
        )
        assert nearest.count == len(stored.rows)
        for share in (None, 0.5, 0.05, 0.004):
            among = (
                None if share is None else stored.numbers[rng.random(len(stored.numbers)) < share]
            )
            size = len(stored.numbers) if among is None else len(among)
            for k, asked in ((1, queries), (10, queries), (10**6, queries[:2])):
                truth = stored.nearest(asked, k, among)
                scores, numbers = nearest.search(asked, k, among)
                assert scores.shape == numbers.shape == (len(asked), min(k, size))
                assert np.isin(numbers, stored.numbers if among is None else among).all()
                assert all(len(set(row)) == len(row) for row in numbers.tolist())
                true = np.einsum(
                    "qkd,qd->qk", stored.rows[np.searchsorted(stored.numbers, numbers)], asked
                )
                assert np.abs(scores - true).max() < 1e-5
                assert recall(numbers, truth[1]) > 0.9
                exactly = nearest.search(asked, k, among, exact=True)
                assert np.abs(exactly[0] - truth[0]).max() < 1e-5
                assert recall(exactly[1], truth[1]) > 0.9999


def test_a_deleted_neighbourhood_leaves_as_many_results_as_were_asked_for(tmp_path: Path) -> None:
    whole = FakeVectors.random("document", 4000, DIM)
    tier, _ = make_tier(tmp_path, "faiss/a.faiss", "document", 0, 4000, whole, 4000, "auto")
    query = whole.rows[:1]
    # far more than the candidates of a search
    gone = np.isin(whole.numbers, whole.nearest(query, 1500)[1])
    stored = whole.without(gone)
    nearest = VectorSearcher.open(
        tmp_path, "document", with_dead([tier], stored), stored, len(stored.rows)
    )
    scores, numbers = nearest.search(query, 10)
    assert recall(numbers, stored.nearest(query, 10)[1]) >= 0.9
    assert np.isfinite(scores).all()


def test_a_selection_far_from_the_query_is_found(tmp_path: Path) -> None:
    whole = FakeVectors.random("document", 6000, DIM)
    for factory in ("auto", "HNSW16", "IVF64,Flat", "IVF4,PQ6x4fs"):
        tier, _ = make_tier(
            tmp_path, f"faiss/{factory}.faiss", "document", 0, 6000, whole, 6000, factory
        )
        nearest = VectorSearcher.open(tmp_path, "document", [tier], whole, 6000)
        query = whole.rows[:1]
        among = np.sort(whole.nearest(query, 6000)[1][0, -1500:])
        _, numbers = nearest.search(query, 10, among)
        assert numbers.shape == (1, 10)
        assert np.isin(numbers, among).all()


def test_equal_scores_are_ordered_by_number(tmp_path: Path) -> None:
    rows = np.repeat(unit(np.random.default_rng(0).normal(size=(3, DIM))), 200, axis=0)
    stored = FakeVectors("document", np.arange(600, dtype=np.int64), rows)
    nearest = VectorSearcher.open(tmp_path, "document", [], stored, 600)
    assert nearest.search(rows[:1], 5)[1].tolist() == [[0, 1, 2, 3, 4]]
    tier, _ = make_tier(tmp_path, "faiss/a", "document", 0, 600, stored, 600, "Flat")
    nearest = VectorSearcher.open(tmp_path, "document", [tier], stored, 600)
    assert nearest.search(rows[:1], 250)[1].tolist()[0][:200] == list(range(200))


@pytest.mark.parametrize("kind", ["document", "passage"])
def test_nothing_stored_and_nothing_asked_for(kind: Kind, tmp_path: Path) -> None:
    empty = FakeVectors(kind, np.empty(0, np.int64), np.empty((0, DIM), np.float32))
    nearest = VectorSearcher.open(tmp_path, kind, [], empty, 0)
    assert nearest.search(np.eye(2, DIM, dtype=np.float32), 10)[1].shape == (2, 0)
    stored = FakeVectors.random(kind, 10, DIM)
    nearest = VectorSearcher.open(tmp_path, kind, [], stored, len(stored.rows))
    assert nearest.search(stored.rows[:2], 0)[0].shape == (2, 0)
    assert nearest.search(stored.rows[:2], 5, stored.numbers[:0])[0].shape == (2, 0)
    assert nearest.search(stored.rows[:0], 5)[0].shape == (0, 0)


def test_a_file_whose_vectors_are_all_gone_is_not_searched(tmp_path: Path) -> None:
    whole = FakeVectors.random("passage", 400, DIM)
    tier, _ = make_tier(tmp_path, "faiss/a", "passage", 0, 200, whole, 400, "auto")
    stored = whole.without(whole.numbers < 200 << 20)
    nearest = VectorSearcher.open(
        tmp_path, "passage", with_dead([tier], stored), stored, len(stored.rows)
    )
    assert np.array_equal(
        nearest.search(stored.rows[:3], 10)[1], stored.nearest(stored.rows[:3], 10)[1]
    )


def test_the_next_version_reads_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = FakeVectors.random("passage", 2000, DIM)
    tier, _ = make_tier(tmp_path, "faiss/a", "passage", 0, 500, whole, 1200, "auto")
    opened = []
    read = FaissSearcher.open.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        FaissSearcher, "open", classmethod(lambda *a, **k: opened.append(a) or read(*a, **k))
    )
    before, queries = None, queries_near(whole, 5)
    for stop in (1000, *range(1001, 1200), 2000):
        stored = whole.before(stop)
        nearest = VectorSearcher.open(
            tmp_path, "passage", [tier], stored, len(stored.rows), before=before
        )
        if before is not None:
            assert stored.scanned == len(stored.rows) - before.count
        assert np.allclose(
            nearest.search(queries, 10)[0], stored.nearest(queries, 10)[0], atol=0.02
        )
        before = nearest
    assert len(opened) == 1
    assert len(nearest._memory.blocks) < 12
    # a file takes over what was in memory
    second, _ = make_tier(tmp_path, "faiss/b", "passage", 500, 1900, whole, 3000, "Flat")
    stored = whole.before(2000)
    nearest = VectorSearcher.open(
        tmp_path, "passage", [tier, second], stored, len(stored.rows), before=before
    )
    assert stored.scanned == 0
    assert len(nearest._memory) == len(stored.rows) - len(whole.before(1900).rows)
    assert np.allclose(nearest.search(queries, 10)[0], stored.nearest(queries, 10)[0], atol=0.02)


def test_single_deletions_cost_no_reading_and_memory_is_filled_again_when_they_are_many(
    tmp_path: Path,
) -> None:
    stored = FakeVectors.random("document", 3000, DIM)
    nearest = VectorSearcher.open(tmp_path, "document", [], stored, 3000)
    rng, scans = np.random.default_rng(3), 0
    for _ in range(300):
        gone = np.zeros(len(stored.rows), bool)
        gone[rng.integers(len(gone))] = True
        query = stored.rows[gone]
        stored = stored.without(gone)
        nearest = VectorSearcher.open(
            tmp_path, "document", [], stored, len(stored.rows), before=nearest
        )
        scans += stored.scanned > 0
        assert np.array_equal(nearest.search(query, 5)[1], stored.nearest(query, 5)[1])
    assert scans == 300 // (tiers.MAX_DEAD_VECTORS_IN_MEMORY + 1)


def make_two_thirds(folder: Path, stored: FakeVectors, factory: str) -> Tier:
    return make_tier(folder, "faiss/a", "document", 0, 200, stored, 200, factory)[0]


def open_with_a_wrong_tier(folder: Path, vectors: FakeVectors) -> None:
    tier = dataclasses.replace(make_two_thirds(folder, vectors, "Flat"), count=201)
    VectorSearcher.open(folder, "document", [tier], vectors, 300)


@refusals(
    {
        IndexFormatError: {
            "299 are counted": partial(VectorSearcher.open, kind="document", tiers=[], count=299),
            "the manifest says 201": open_with_a_wrong_tier,
        },
        BackendError: {
            device: partial(
                VectorSearcher.open, kind="document", tiers=[], count=300, device=device
            )
            for device in ("mps", "cuda")
        },
    }
)
def test_what_does_not_fit_what_is_stored_is_not_opened(tmp_path: Path, refused: Refusal) -> None:
    refused(tmp_path, vectors=FakeVectors.random("document", 300, DIM))


@refusals(
    {
        ConfigError: {
            "cannot make": partial(make_two_thirds, factory="Flatt"),
            "trained on 200": partial(make_two_thirds, factory="IVF4096,Flat"),
            "2 links": partial(make_two_thirds, factory="HNSW1"),
        },
    }
)
def test_a_type_that_cannot_be_made_says_so(tmp_path: Path, refused: Refusal) -> None:
    refused(tmp_path, FakeVectors.random("document", 300, DIM))
    assert not list(tmp_path.glob("faiss/*"))


def test_a_card_that_is_too_small_is_told_with_what_would_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    spare = 2 * tiers.MAX_BLOCK_VECTORS * (DIM + 256)
    monkeypatch.setattr(tiers, "check_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (spare + 2 * DIM * 7, 0))
    stored = FakeVectors.random("document", 10, DIM)
    with pytest.raises(BackendError, match=r"'cuda:1': 10 vectors of 24 .* enough for 7 vectors"):
        VectorSearcher.open(tmp_path, "document", [], stored, 10, device="cuda:1")
    assert stored.scanned == 0
    tiers.check_room("cuda:1", 7, DIM)


def test_two_wheels_of_faiss_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"faiss-cpu": "1.15.1", "faiss-gpu": "1.15.0"}
    monkeypatch.delitem(sys.modules, "faiss", raising=False)
    monkeypatch.setattr(faiss_file, "installed", installed.get)
    with pytest.raises(
        BackendError,
        match=r"faiss-cpu 1\.15\.1 and faiss-gpu 1\.15\.0 are both installed.*uninstall",
    ):
        faiss_file.import_faiss()


def test_vectors_on_a_device_are_found_by_products_in_float16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "check_device", lambda device: None)
    whole = FakeVectors.random("passage", 1500, DIM)
    whole.rows = unit(whole.rows.astype(np.float16).astype(np.float32))
    tier, _ = make_tier(tmp_path, "faiss/a", "passage", 0, 500, whole, 1200, "auto")
    rng, before, queries = np.random.default_rng(0), None, queries_near(whole, 7)
    for stop in (1000, 1010, 1500):
        stored = whole.before(stop)
        nearest = VectorSearcher.open(
            tmp_path, "passage", [tier], stored, len(stored.rows), device="cpu:0", before=before
        )
        for among in (None, stored.numbers[rng.random(len(stored.numbers)) < 0.1]):
            scores, numbers = nearest.search(queries, 10, among)
            truth = stored.nearest(queries, 10, among)
            assert np.abs(scores - truth[0]).max() < 2e-3
            assert recall(numbers, truth[1]) > 0.98
        before = nearest


class OnCard:
    """What FAISS puts on a GPU, as measured: it ignores filters, and takes 2,048 candidates and
    lists at most.
    """

    def __init__(self, index: faiss.Index) -> None:
        self.index, self.searches = index, 0

    def search(self, queries: np.ndarray, k: int, params: Any) -> tuple[np.ndarray, np.ndarray]:
        assert faiss_file._card_lock.locked()
        self.searches += 1
        if hasattr(params, "itopk_size"):
            assert k <= params.itopk_size <= 512
            return self.index.search(
                queries, k, params=faiss.SearchParametersHNSW(efSearch=params.itopk_size)
            )
        assert max(k, params.nprobe) <= 2048
        return self.index.search(queries, k, params=faiss.SearchParametersIVF(nprobe=params.nprobe))


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[OnCard]:
    """FAISS's copies on a GPU that is not there."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    made: list[OnCard] = []

    def one(resources: object, card: int, index: faiss.Index, options: Any) -> Any:
        assert options.useFloat16
        made.append(OnCard(index))
        return made[-1]

    def shards(
        resources: list[object], index: faiss.Index, options: Any, cards: list[int]
    ) -> OnCard:
        assert options.shard and len(resources) == len(cards)
        halves = faiss.IndexShards(index.d, False, False)
        for half in range(2):
            part = faiss.index_factory(index.d, "IVF8,Flat", 0)
            part.quantizer = faiss.clone_index(faiss.downcast_index(index.quantizer))
            part.is_trained = True
            index.copy_subset_to(part, 1, 2, half)  # every second number
            halves.add_shard(part)
        made.append(OnCard(halves))
        return made[-1]

    def graph(resources: object, dim: int, metric: int, config: Any) -> faiss.Index:
        assert config.intermediate_graph_degree == 2 * config.graph_degree
        return faiss.IndexHNSWCagra(dim, config.graph_degree // 2, metric)

    fakes = {
        "GpuIndexCagraConfig": SimpleNamespace,
        "GpuIndexCagra": graph,
        "SearchParametersCagra": SimpleNamespace,
        "GpuClonerOptions": Mock,
        "index_gpu_to_cpu": lambda index: index,
        "get_num_gpus": lambda: 2,
        "StandardGpuResources": Mock,
        "GpuMultipleClonerOptions": SimpleNamespace,
        "index_cpu_to_gpu": one,
        "index_cpu_to_gpu_multiple_py": shards,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(faiss, name, fake, raising=False)
    monkeypatch.setattr(tiers, "check_device", lambda device: None)
    monkeypatch.setattr(embedder, "check_device", lambda device: None)
    monkeypatch.setattr(faiss_file, "FEWEST_IN_GRAPH", 1000)
    monkeypatch.setattr(faiss_file, "_MIN_GPU_LISTS", 8)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda card: (1 << 40, 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    faiss_file._resources.cache_clear()
    return made


@pytest.mark.parametrize("factory", ["IVF8,Flat", "IVF8,SQ8", "IVF8,PQ2", "CAGRA", "CAGRA32"])
def test_a_copy_on_a_card_answers_as_the_file_does(
    tmp_path: Path, copies: list[OnCard], factory: str
) -> None:
    whole = FakeVectors.random("passage", 1500, DIM)
    where = "cuda:1" if "CAGRA" in factory else "cpu"
    tier, _ = make_tier(tmp_path, "faiss/a", "passage", 0, 1000, whole, 2500, factory, device=where)
    rng, before, queries = np.random.default_rng(0), None, queries_near(whole, 7)
    for gone in (0.0, 0.1):
        stored = whole.without(rng.random(len(whole.rows)) < gone)
        (now,) = with_dead([tier], stored)
        nearest = VectorSearcher.open(
            tmp_path, "passage", [now], stored, len(stored.rows), device="cpu:0", before=before
        )
        on_cpu = VectorSearcher.open(tmp_path, "passage", [now], stored, len(stored.rows))
        for among in (None, stored.numbers[rng.random(len(stored.numbers)) < 0.3]):
            asked = copies[0].searches
            found, expected = nearest.search(queries, 10, among), on_cpu.search(queries, 10, among)
            assert recall(found[1], expected[1]) > 0.98  # what no file covers is in float16 there
            assert np.abs(found[0] - expected[0]).max() < 2e-3
            assert among is None or np.isin(found[1], among).all()
            assert among is not None or copies[0].searches > asked
        before = nearest
    assert len(copies) == 1  # the next version takes it over


def test_what_a_card_does_not_do_is_asked_of_the_file(tmp_path: Path, copies: list[OnCard]) -> None:
    stored = FakeVectors.random("document", 6000, DIM)
    tier, _ = make_tier(tmp_path, "faiss/a", "document", 0, 6000, stored, 6000, "IVF8,SQ8")
    nearest = VectorSearcher.open(tmp_path, "document", [tier], stored, 6000, device="cpu:0")
    queries = queries_near(stored, 3)
    # 2,100 candidates
    assert recall(nearest.search(queries, 700)[1], stored.nearest(queries, 700)[1]) > 0.98
    few = stored.numbers[::3]
    assert recall(nearest.search(queries, 10, few)[1], stored.nearest(queries, 10, few)[1]) > 0.98
    assert copies[0].searches == 0


@pytest.mark.parametrize("factory", ["IVF8,Flat", "IVF8,RaBitQfs", "OPQ6,IVF4,PQ6x4", "HNSW8"])
def test_lists_are_trained_on_a_card(
    tmp_path: Path, copies: list[OnCard], monkeypatch: pytest.MonkeyPatch, factory: str
) -> None:
    """With the same lists as on a CPU: a card only finds the nearest centroids; what lies on it is
    given back.
    """
    stored, files, cards = FakeVectors.random("document", 1000, DIM), {}, {}
    lists = faiss.try_extract_index_ivf

    def there(resources: object, card: int, index: faiss.Index, options: object) -> faiss.Index:
        cards[card] = faiss.clone_index(index)
        return cards[card]

    trained = []
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", there)
    monkeypatch.setattr(
        faiss, "try_extract_index_ivf", lambda index: trained.append(lists(index)) or trained[-1]
    )
    for device in ("cpu", "cuda:1"):
        tier, _ = make_tier(
            tmp_path, f"faiss/{device}", "document", 0, 1000, stored, 1000, factory, device=device
        )
        files[device] = (tmp_path / tier.file).read_bytes()
    assert files["cpu"] == files["cuda:1"]
    if on_card := factory in ("IVF8,Flat", "IVF8,RaBitQfs"):
        assert (cards[1].ntotal, cards[1].thisown) == (8, True)
        assert trained[-1].clustering_index is None
    assert bool(cards) == on_card


def test_lists_that_a_card_cannot_train_are_trained_on_the_cpu(
    tmp_path: Path,
    copies: list[OnCard],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored = FakeVectors.random("document", 2000, DIM)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", Mock(side_effect=MemoryError("no room")))
    tier, _ = make_tier(
        tmp_path, "faiss/a", "document", 0, 2000, stored, 2000, "IVF8,Flat", device="cuda:1"
    )
    assert FaissSearcher.open(tmp_path, tier).index.ntotal == 2000
    assert "IVF8,Flat is trained on the CPU, as cuda:1 cannot do it: no room" in caplog.text


def test_a_graph_of_a_card_is_searched_on_a_cpu_too(tmp_path: Path, copies: list[OnCard]) -> None:
    stored = FakeVectors.random("document", 6000, DIM)
    tier, _ = make_tier(
        tmp_path,
        "faiss/a",
        "document",
        0,
        6000,
        stored,
        6000,
        "CAGRA32;efSearch=128",
        device="cuda:1",
    )
    assert tier.factory == "CAGRA32"
    file = FaissSearcher.open(tmp_path, tier)
    assert (file.traits.knob, file.traits.keeps_floats, file.candidates_for(10)) == (
        "efSearch",
        True,
        10,
    )
    queries, few = queries_near(stored, 5), stored.numbers[::3]
    for device in ("cpu", "cuda:1"):
        nearest = VectorSearcher.open(tmp_path, "document", [tier], stored, 6000, device=device)
        assert recall(nearest.search(queries, 10)[1], stored.nearest(queries, 10)[1]) > 0.98
        assert (
            recall(nearest.search(queries, 10, few)[1], stored.nearest(queries, 10, few)[1]) > 0.98
        )
        # more than a card takes
        assert recall(nearest.search(queries, 600)[1], stored.nearest(queries, 600)[1]) > 0.9
    assert copies[0].searches == 1


def test_a_graph_needs_a_card_with_room_and_its_wheel(
    tmp_path: Path, copies: list[OnCard], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    for degree in (3, 5, 2):
        with pytest.raises(ConfigError, match=f"'CAGRA{degree}': each vector has an even number"):
            faiss_file.create(f"CAGRA{degree}", DIM)
    stored, size = FakeVectors.random("document", 1000, DIM), 4 * 1000 * (DIM + 3 * 64)
    making = partial(
        make_tier, tmp_path, "faiss/a", "document", 0, 1000, stored, 1000, "CAGRA", device="cuda:1"
    )
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda card: (faiss_file._CARD_SCRATCH_BYTES + size // 2, 0)
    )
    with pytest.raises(
        BackendError, match=r"'cuda:1': 1,000 vectors as CAGRA take .* enough for 500 vectors"
    ):
        making()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda card: (1 << 40, 0))
    monkeypatch.setattr(faiss, "GpuIndexCagra", Mock(side_effect=MemoryError("std::bad_alloc")))
    with pytest.raises(
        BackendError, match="index 'CAGRA': cuda:1 cannot make it: std::bad_alloc; use HNSW32"
    ):
        making()
    few, _ = make_tier(
        tmp_path, "faiss/b", "document", 0, 999, stored, 999, "CAGRA", device="cuda:1"
    )
    assert few.factory == "Flat"
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    with pytest.raises(
        BackendError, match=r"'CAGRA64': only a GPU makes this graph, .* faiss-gpu-cuvs"
    ):
        build_index([{"_id": "a", "text": "b"}], tmp_path / "index", index="CAGRA64")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("factory", ["auto", "Flat", "HNSW16", "OPQ6,IVF4,PQ6x4"])
def test_other_files_are_searched_exactly_on_a_card(
    tmp_path: Path, copies: list[OnCard], factory: str
) -> None:
    stored = FakeVectors.random("document", 500, DIM)
    tier, _ = make_tier(tmp_path, "faiss/a", "document", 0, 500, stored, 500, factory)
    nearest = VectorSearcher.open(tmp_path, "document", [tier], stored, 500, device="cpu:0")
    assert nearest._files == []
    assert len(nearest._memory) == 500
    assert not copies


def test_a_file_too_large_for_a_card_is_spread_over_all_or_refused(
    tmp_path: Path, copies: list[OnCard], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    stored = FakeVectors.random("document", 1000, DIM)
    tier, _ = make_tier(tmp_path, "faiss/a", "document", 0, 1000, stored, 1000, "IVF8,Flat")
    path = tmp_path / tier.file
    size, opened = path.stat().st_size, FaissSearcher.open(tmp_path, tier, mapped=False)
    spare = faiss_file._CARD_SCRATCH_BYTES
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda card: (spare + size * 3 // 4, 0))
    spread = copied_to_cards(opened, path, "cuda")
    queries = queries_near(stored, 3)
    assert recall(spread.candidates(queries, 10)[1], opened.candidates(queries, 10)[1]) == 1
    assert copies[0].searches == 1
    with pytest.raises(
        BackendError,
        match=r"'cuda:1': 1,000 vectors as IVF8,Flat .* on 1 GPU, enough for 7\d\d vectors",
    ):
        copied_to_cards(opened, path, "cuda:1")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda card: (spare + size // 3, 0))
    with pytest.raises(BackendError, match=r"on 2 GPUs, enough for 6\d\d vectors"):
        copied_to_cards(opened, path, "cuda")


@pytest.mark.parametrize("change", ["delete", "compact", "repair"])
def test_an_index_of_graphs_changes_without_a_card(
    tmp_path: Path,
    copies: list[OnCard],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: str,
) -> None:
    root, texts = tmp_path / "index", [{"_id": str(n), "text": "words"} for n in range(1000)]
    rows, ids = FakeVectors.random("document", 1000, DIM).rows, [str(n) for n in range(0, 1000, 3)]
    build_index(texts, root, vectors=rows, index="CAGRA", granularity="document")
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    found = {
        "delete": lambda: one_change.delete(root, ids),
        "compact": lambda: one_change.compact(root),
    }
    if change == "repair":
        (next((root / "faiss").iterdir())).write_bytes(b"")
        assert verify_index(root, repair=True).repaired
    else:
        found[change]()
    assert "without a GPU, new files of documents are not made" in caplog.text
    with Retriever.load(root) as retriever:
        (hits,) = retriever.search_vectors(rows[7:8], 1)
        assert hits[0].id == "7"
        assert bool(read_manifest(root).tiers) == (change != "repair")
    assert one_change.delete(root, ["1"]).deleted == 1  # nothing is left unfinished


@pytest.mark.parametrize("change", ["build", "upsert", "sync", "batch"])
def test_a_change_trains_on_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    opening = sync.open_model
    folder, root = tmp_path / "texts", tmp_path / "index"
    folder.mkdir()
    (folder / "a.txt").write_text("A valve of the pump.")
    text, vectors = [{"_id": "b", "text": "A valve."}], np.ones((1, 4), np.float32)
    if change == "sync":  # its model would be loaded there
        monkeypatch.setattr(sync, "open_model", lambda made, root, options: opening(made, root, {}))
        build_index(folder, root, index="Flat", granularity="document")
        (folder / "a.txt").write_text("Another valve.")
    else:
        build_index(text, root, vectors=vectors, index="Flat", granularity="document")
    other = [{"_id": "b", "text": "Another valve."}]  # the same text would change nothing
    tiers_made = record_calls(monkeypatch, due_files, "make_tier")
    monkeypatch.setattr(due_files, "plan", lambda *arguments, **how: [(0, arguments[2])])
    if change == "sync":
        sync_index(folder, root, device="cuda")
    elif change == "build":
        how = {"vectors": vectors, "index": "Flat", "granularity": "document", "device": "cuda"}
        build_index(text, root, overwrite=True, **how)
    elif change == "upsert":
        one_change.upsert(other, root, vectors=-vectors, device="cuda")
    else:
        batch = Batch(root, device="cuda")
        batch.upsert(other, vectors=-vectors)
        batch.commit()
    assert [call["device"] for call in tiers_made] == ["cuda"]


def test_changes_of_an_index_train_on_its_device(tmp_path: Path) -> None:
    with Index.open(tmp_path / "index", create=True, model=FakeEmbedder()) as opened:
        opened._opening = dataclasses.replace(opened._opening, device="cuda")
        assert opened._batch(None)._device == "cuda"
