"""FAISS files: which type for how many vectors, trained, filled, written, opened and searched.

All vectors are unit length (or zero), so the inner product is the cosine. Ids are ours: an IVF
index keeps them itself, any other index is wrapped in `IndexIDMap`.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval import files
from aveyb_retrieval.errors import BackendError, ConfigError, IndexFormatError, extra_for
from aveyb_retrieval.indexes.types import find_in, number_range
from aveyb_retrieval.system import installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import faiss

    from aveyb_retrieval.indexes.store.manifest import Tier
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

_log = logging.getLogger("aveyb_retrieval.index")
AUTO, NONE = "auto", "none"  # by the number of vectors; never
# Measured by benchmarks/cpu/nearest.py on passages of real text: one bit a dimension (RaBitQ) with
# 400 candidates scored again finds .985 of the ten nearest, in 48 bytes a vector, where HNSW32
# (.99) takes 1,300 and fifteen times longer to build. Lists would have to be searched by the
# quarter for the same recall, so they only pay in large files.
# numbers that are searched in memory before "auto" makes a file of them
EXACT_COMPONENTS = 32_768 * 256
ONE_LIST_VECTORS = 1_000_000  # vectors: up to so many, all codes are scanned
SHARED_QUERIES = 8  # queries, from which on FAISS shares them among threads
FEWEST_IN_GRAPH = (
    4096  # vectors that are worth a graph; of some few a GPU makes none (faiss issue 4260)
)
_MIN_GPU_LISTS = 256  # that are worth a GPU
_WHEELS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cuvs")
_HNSW = re.compile(r"HNSW(\d+)")
# a graph that a GPU makes of all vectors at once, and FAISS keeps as one of HNSW
CAGRA = re.compile(r"CAGRA(\d*)")


def import_faiss() -> Any:
    """The `faiss` module."""
    wheels = []
    if "faiss" not in sys.modules:
        versions = ((name, installed(name)) for name in _WHEELS)
        wheels = [f"{name} {version}" for name, version in versions if version]
    if len(wheels) > 1:
        raise BackendError(
            f"{' and '.join(wheels)} are both installed and write the same files: `pip uninstall -y"
            f" {' '.join(wheel.partition(' ')[0] for wheel in wheels)}`, then `pip install` the one"
            " that you want"
        )
    with extra_for("building and searching an index", "cpu"):
        import faiss
    return faiss


def exact_limit(dim: int) -> int:
    """How many vectors of `dim` components are searched exactly in memory."""
    return EXACT_COMPONENTS // dim


def chosen(index: str, count: int) -> tuple[str, dict[str, int]]:
    """The FAISS factory string for `count` vectors, with settings of searches; "auto" keeps
    recall@10 at .98.
    """
    if index == AUTO:
        cells = 1 if count <= ONE_LIST_VECTORS else 2 ** round(math.log2(math.sqrt(count)))
        return f"IVF{cells},RaBitQfs", {} if cells == 1 else {"nprobe": cells // 4}
    factory, *assignments = index.split(";")
    if CAGRA.fullmatch(factory) and count < FEWEST_IN_GRAPH:
        factory = "Flat"
    settings = {}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if name not in DEFAULT_PARAMS or not (
            value.isascii() and value.isdigit() and 0 < int(value) < 1 << 31
        ):
            raise ConfigError(
                f"index={index!r}: {assignment!r} is not one of the settings"
                f" {', '.join(DEFAULT_PARAMS)} (nprobe=64)"
            )
        settings[name] = int(value)
    return factory, settings


def training_size(index: faiss.Index, count: int) -> int:
    """How many vectors of `count` to train an index on: FAISS asks for 39 per cell and gains little
    beyond 64.
    """
    faiss = import_faiss()
    if index.is_trained:
        return 0
    ivf = faiss.try_extract_index_ivf(index)
    return min(count, max(65_536, 64 * ivf.nlist if ivf else 0))


def create(factory: str, dim: int) -> faiss.Index:
    """Make an empty index from a FAISS factory string, one that keeps our ids."""
    faiss = import_faiss()
    if graph := CAGRA.fullmatch(factory):
        if not can_make(factory):
            raise BackendError(
                f"index {factory!r}: only a GPU makes this graph, with FAISS's wheel"
                " faiss-gpu-cuvs instead of any other; on a CPU use HNSW32"
            )
        degree = int(graph[1] or 64)
        if degree < 4 or degree % 2:
            raise ConfigError(
                f"index {factory!r}: each vector has an even number of neighbors, 4 or more"
            )
        return faiss.IndexIDMap(faiss.IndexHNSWCagra(dim, degree // 2, faiss.METRIC_INNER_PRODUCT))
    if any(int(links) < 2 for links in _HNSW.findall(factory)):  # filling it ends the process
        raise ConfigError(
            f"FAISS cannot make an index {factory!r}: HNSW needs at least 2 links for each vector"
        )
    try:
        index = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ConfigError(
            f"FAISS cannot make an index {factory!r} for dimension {dim}: {reason(error)}"
        ) from error
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None and ivf.nlist < 1:
        raise ConfigError(
            f"FAISS cannot make an index {factory!r}: it has no inverted lists; name at least one"
        )
    return index if _keeps_ids(index) else faiss.IndexIDMap(index)


def train(index: faiss.Index, sample: FloatArray, factory: str, device: str = "cpu") -> None:
    """Train an index on a sample of the vectors, `[n, d]`; many inverted lists on "cuda" where
    FAISS has a GPU.
    """
    faiss = import_faiss()
    ivf = faiss.try_extract_index_ivf(index)
    if (
        device.startswith("cuda")
        and ivf is not None
        and ivf.nlist >= _MIN_GPU_LISTS
        and faiss.get_num_gpus() > 0
    ):
        try:  # what finds the nearest centroid of each vector, again and again
            centroids, options = faiss.IndexFlat(ivf.d, ivf.metric_type), faiss.GpuClonerOptions()
            trained_on_card = faiss.index_cpu_to_gpu(
                faiss.StandardGpuResources(), _card(device), centroids, options
            )
            ivf.clustering_index = trained_on_card
            index.train(sample)
        except (RuntimeError, MemoryError) as error:
            _log.warning(
                "%s is trained on the CPU, as %s cannot do it: %s", factory, device, reason(error)
            )
        finally:
            if ivf.clustering_index is not None:
                ivf.clustering_index = None
                trained_on_card.this.own(True)  # given to the index, which forgets it
    try:
        if not index.is_trained:
            index.train(sample)
    except RuntimeError as error:
        raise ConfigError(
            f"the index {factory!r} cannot be trained on {len(sample)} vectors: {reason(error)}; "
            "use a smaller one, or --index auto"
        ) from error


def reserve(index: faiss.Index, count: int) -> None:
    """Make room for `count` more vectors at once, where an index keeps them in one array that would
    be copied.
    """
    faiss = import_faiss()
    inner = innermost(index)
    if isinstance(inner, faiss.IndexHNSW):
        inner = faiss.downcast_index(inner.storage)
    if isinstance(inner, faiss.IndexFlatCodes):
        size = inner.codes.size()
        inner.codes.resize(size + count * inner.code_size)
        inner.codes.resize(size)  # gives nothing back


def fill(index: faiss.Index, ids: IntArray, vectors: FloatArray) -> None:
    """Add vectors `[n, d]` under our ids `[n]`."""
    try:
        index.add_with_ids(vectors, ids)
    except RuntimeError as error:
        raise ConfigError(
            f"the index cannot take {len(ids):,} vectors: {reason(error)}; use another one, or"
            " --index auto"
        ) from error


@contextmanager
def threads_for(queries: int) -> Iterator[None]:
    """Search for few queries with one thread: others would wait for it actively, and take
    processors from Lance's.
    """
    faiss = import_faiss()
    before = faiss.omp_get_max_threads()  # of the calling thread alone
    faiss.omp_set_num_threads(before if queries >= SHARED_QUERIES else 1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def best_halves(vectors: np.ndarray, queries: FloatArray, k: int, margin: float) -> IntArray:
    """Which of vectors `[m, d]` float16 are among the `k` best of a query `[n, d]`, or at most
    `margin` worse, `[i]`.

    FAISS multiplies them as they are; NumPy would take each number by itself.
    """
    faiss = import_faiss()
    held = faiss.IndexScalarQuantizer(
        vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    codes = np.ascontiguousarray(vectors).view(np.uint8).reshape(-1)
    held.codes = faiss.MaybeOwnedVectorUInt8.create_view(
        faiss.swig_ptr(codes), codes.size, held.codes.owner
    )
    held.ntotal = len(vectors)
    depth = k
    with threads_for(len(queries)):
        while True:
            depth = min(2 * depth, len(vectors))
            scores, places = held.search(queries, depth)
            is_near = scores >= scores[:, k - 1 : k] - margin
            if depth == len(vectors) or not is_near[:, -1].any():
                return np.unique(places[is_near])


def innermost(index: faiss.Index) -> Any:
    """What is inside the wrappers that keep our ids and transform vectors."""
    faiss = import_faiss()
    inner: Any = index
    while isinstance(inner, (faiss.IndexIDMap, faiss.IndexPreTransform)):
        inner = faiss.downcast_index(inner.index)
    return inner


def _keeps_ids(index: faiss.Index) -> bool:
    faiss = import_faiss()
    if isinstance(index, (faiss.IndexIVF, faiss.IndexIDMap)):
        return True
    return isinstance(index, faiss.IndexPreTransform) and isinstance(
        faiss.downcast_index(index.index), faiss.IndexIVF
    )


def reason(error: BaseException) -> str:
    """The last part of a FAISS message; what comes before is the C++ function it came from."""
    return (
        str(error).strip().rsplit("Error: ", 1)[-1].splitlines()[0]
        if str(error).strip()
        else type(error).__name__
    )


def write(index: faiss.Index, path: Path) -> files.FileInfo:
    """Write an index to disk, atomically."""
    faiss = import_faiss()
    failure: list[OSError] = []
    with files.atomic_writer(path) as out:

        def forward(data: bytes) -> int:
            try:
                return out.write(data)
            except OSError as error:
                # it must not cross FAISS's C++, which would turn it into a message
                failure.append(error)
                return 0

        try:
            faiss.write_index(index, faiss.PyCallbackIOWriter(forward, 1 << 20))
        except RuntimeError as error:
            raise (failure[0] if failure else error) from error
        if failure:
            raise failure[0]
    return out.info()


def read(path: Path, *, mapped: bool) -> faiss.Index:
    """Open a file whose hash was checked; `mapped` leaves the vectors on disk, shared, and allows
    no change.
    """
    faiss = import_faiss()
    try:
        # releases of FAISS that do not have this flag map inverted lists only
        flag = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP)
        # tables that PQ needs for distances alone, not for inner products, may be larger than the
        # file
        return faiss.read_index(
            str(path), (flag if mapped else 0) | faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE
        )
    except (RuntimeError, MemoryError) as error:
        raise IndexFormatError(
            f"{path}: FAISS cannot read it ({reason(error)}); `aveyb-index verify --repair`"
            " rebuilds it"
        ) from error


# 400 find .97 of the ten nearest among 10^6
DEFAULT_PARAMS = {"nprobe": 32, "efSearch": 96, "rescore": 500}
# ids that FAISS's selector takes up in the time in which one more candidate is found and dropped
IDS_PER_CANDIDATE = 5

MAX_EFFORT_FACTOR = 16  # how many times harder a limited search looks at most


@dataclass(frozen=True)
class FaissTraits:
    """What a FAISS index can do, read off its type."""

    knob: str  # the setting that trades speed for recall: "nprobe", "efSearch", or ""
    largest: int  # the highest useful value of the knob; 0 without one
    takes_selector: bool  # whether a search can be limited to some ids
    keeps_floats: bool  # whether scores are those of the vectors themselves, not of shortened codes
    transformed: bool  # whether vectors are rotated or shortened before they reach the index itself

    @classmethod
    def of(cls, index: Any) -> FaissTraits:
        faiss = import_faiss()
        inner = innermost(index)
        within = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexIDMap) else index
        transformed = isinstance(within, faiss.IndexPreTransform)
        knob, largest = "", 0
        if isinstance(inner, faiss.IndexIVF):
            knob, largest = "nprobe", int(inner.nlist)
        elif isinstance(inner, faiss.IndexHNSW) and not transformed:
            knob, largest = "efSearch", max(int(index.ntotal), 1)
        floats = isinstance(
            inner, (faiss.IndexFlat, faiss.IndexHNSWFlat, faiss.IndexHNSWCagra, faiss.IndexIVFFlat)
        )
        flat = isinstance(inner, faiss.IndexFlat) and not transformed
        listed = isinstance(inner, faiss.IndexIVF) and _lists_take_selectors(inner)
        return cls(
            knob=knob,
            largest=largest,
            takes_selector=flat or knob == "efSearch" or listed,
            keeps_floats=floats and not transformed,
            transformed=transformed,
        )


def _lists_take_selectors(ivf: Any) -> bool:
    """Whether a search of inverted lists can be limited: of the fast-scan types only
    RaBitQ's can.
    """
    faiss = import_faiss()
    fast = getattr(faiss, "IndexIVFFastScan", ())
    return not isinstance(ivf, fast) or isinstance(
        ivf, getattr(faiss, "IndexIVFRaBitQFastScan", ())
    )


class FaissSearcher:
    """One FAISS file, open, perhaps with a copy on GPUs, which takes no filters.

    Safe to use from many threads.
    """

    def __init__(self, tier: Tier, index: Any, on_card: Any = None) -> None:
        self.tier = tier
        self.index = index
        self.on_card = on_card
        self.traits = FaissTraits.of(index)
        self.params = {**DEFAULT_PARAMS, **tier.params}
        self.first, self.stop = number_range(tier.kind, tier.first, tier.stop)
        self.live = tier.count - tier.dead

    @classmethod
    def open(cls, root: Path, tier: Tier, *, mapped: bool = True) -> FaissSearcher:
        """Open a file of the index at `root`; what FAISS can map is mapped, not read."""
        path = root / tier.file
        index = read(path, mapped=mapped)
        if index.ntotal != tier.count:
            raise IndexFormatError(
                f"{path}: {index.ntotal:,} vectors in it, the manifest says {tier.count:,}; "
                "`aveyb-index verify --repair` rebuilds it"
            )
        return cls(tier, index)

    def followed_by(self, tier: Tier) -> FaissSearcher:
        """The same file as another version's manifest describes it."""
        return self if tier == self.tier else FaissSearcher(tier, self.index, self.on_card)

    def candidates_for(self, k: int) -> int:
        """How many candidates to ask for when `k` are needed: of 400, three each find .88, of the
        first 100 .97.
        """
        return k if self.traits.keeps_floats else max(3 * k, self.params["rescore"])

    def candidates(
        self, queries: FloatArray, m: int, among: IntArray | None = None, *, grown: int = 1
    ) -> tuple[FloatArray, IntArray]:
        """The `m` best candidates by its own scores: `[n, up to m or more]`, padded with -inf and
        -1, in no order.

        `among`: ascending numbers that the search is limited to, all in this file. `grown`: how
        many times harder to look than usual.
        """
        count = int(self.index.ntotal)
        ask = m * grown * count // max(self.live, 1) + (16 if self.tier.dead else 0)
        selector, sift, effort = None, False, grown
        if among is not None:
            share = len(among) / max(count, 1)
            sifted = int(1.25 * ask / share) + 16
            cheaper = (
                grown > 1
                or self.traits.knob == "efSearch"
                or len(among) < IDS_PER_CANDIDATE * sifted
            )
            if self.traits.takes_selector and cheaper:
                selector = import_faiss().IDSelectorBatch(among)
                # the nearest of few are further away
                effort = grown * min(round(1 / share), MAX_EFFORT_FACTOR)
            else:
                sift, ask = True, sifted
        scores, numbers = self._search(queries, min(ask, count), selector, effort)
        is_left_out = (numbers < 0) | np.isnan(scores)
        if sift and among is not None:
            is_left_out |= ~find_in(among, numbers)[1]
        scores[is_left_out], numbers[is_left_out] = -np.inf, -1
        return scores, numbers

    def _search(
        self, queries: FloatArray, k: int, selector: Any, effort: int
    ) -> tuple[FloatArray, IntArray]:
        params, graph = self._parameters(k, selector, effort), self.traits.knob == "efSearch"
        if self.on_card is not None and selector is None:
            width = max(k, min(self.params[self.traits.knob] * effort, self.traits.largest))
            if width <= (MAX_CANDIDATES_IN_GRAPH if graph else MAX_CANDIDATES_ON_CARD):
                card_params = (
                    import_faiss().SearchParametersCagra(itopk_size=width) if graph else params
                )
                with _card_lock:
                    return self.on_card.search(queries, k, params=card_params)
        with threads_for(len(queries)):
            return self.index.search(queries, k, params=params)

    def exhausted(self, m: int, grown: int) -> bool:
        """Whether looking harder than this finds no more."""
        knob = self.traits.knob
        return m * grown >= self.index.ntotal and (
            not knob or self.params[knob] * grown >= self.traits.largest
        )

    def _parameters(self, k: int, selector: Any, effort: int) -> Any:
        faiss = import_faiss()
        knob = self.traits.knob
        if not knob:
            return None if selector is None else faiss.SearchParameters(sel=selector)
        value = min(self.params[knob] * effort, self.traits.largest)
        if knob == "efSearch":
            return faiss.SearchParametersHNSW(efSearch=max(value, k), sel=selector)
        inner = faiss.SearchParametersIVF(nprobe=value, sel=selector)
        return (
            faiss.SearchParametersPreTransform(index_params=inner)
            if self.traits.transformed
            else inner
        )


# what FAISS has on GPUs and torch does not outrun there
_ON_CARD = re.compile(r"IVF\d+,(Flat|SQ8|SQfp16|PQ\d+(x8)?)")
MAX_CANDIDATES_ON_CARD = 2048  # candidates, and lists, of one search by FAISS on a GPU
MAX_CANDIDATES_IN_GRAPH = 512  # candidates of one search there by CAGRA
_CARD_SCRATCH_BYTES = 1 << 29  # bytes for intermediate results
_card_lock = threading.Lock()  # FAISS's memory for intermediate results serves one search at a time


def card_takes(tiers: Sequence[Tier]) -> bool:
    """Whether FAISS has a GPU, and on it the types of all these files."""
    faiss = import_faiss()
    graphs = hasattr(faiss, "GpuIndexCagra")
    takes_card = (
        _ON_CARD.fullmatch(tier.factory) or (graphs and CAGRA.fullmatch(tier.factory))
        for tier in tiers
    )
    return all(takes_card) and faiss.get_num_gpus() > 0


def copied_to_cards(file: FaissSearcher, path: Path, device: str) -> FaissSearcher:
    """Copy an open file to "cuda:1", or to "cuda": the first GPU or, where that is too small,
    shards on all.
    """
    faiss, cards = (
        import_faiss(),
        _cards(device, path.stat().st_size, file.tier.count, file.tier.factory),
    )
    options = faiss.GpuMultipleClonerOptions()
    options.shard, options.useFloat16 = True, True
    try:
        with _card_lock:
            if len(cards) == 1:
                on_cards = faiss.index_cpu_to_gpu(
                    _resources(cards[0]), cards[0], file.index, options
                )
            else:
                on_cards = faiss.index_cpu_to_gpu_multiple_py(
                    [*map(_resources, cards)], file.index, options, cards
                )
    except (RuntimeError, MemoryError) as error:
        what = f"{path}: FAISS cannot copy {file.tier.factory!r} to {device!r}"
        raise BackendError(f"{what}: {reason(error)}; search with device='cpu'") from error
    return FaissSearcher(file.tier, file.index, on_cards)


def can_make(index: str) -> bool:
    """Whether an index of this type can be made here: CAGRA needs a GPU, and the wheel that knows
    it.
    """
    if CAGRA.fullmatch(index.partition(";")[0]) is None:
        return True
    faiss = import_faiss()
    return hasattr(faiss, "GpuIndexCagra") and faiss.get_num_gpus() > 0


def graph_by_card(
    made: faiss.Index, factory: str, blocks: Iterable[tuple[IntArray, FloatArray]], device: str
) -> faiss.Index:
    """Make a graph of all vectors at once, as `made` describes it, on one GPU: the first unless
    another is named.
    """
    from aveyb_retrieval.encoder.embedders.embedder import check_device

    faiss, card, dim = import_faiss(), _card(device), made.d
    check_device(f"cuda:{card}")
    ids, vectors = map(np.concatenate, zip(*blocks, strict=True))
    # must outlive the copy to the CPU, which reads it
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    config = faiss.GpuIndexCagraConfig()
    degree = innermost(made).hnsw.nb_neighbors(0)
    config.device, config.graph_degree, config.intermediate_graph_degree = card, degree, 2 * degree
    # vectors and both graphs
    _cards(f"cuda:{card}", 4 * len(ids) * (dim + 3 * degree), len(ids), factory)
    try:
        graph = faiss.GpuIndexCagra(
            faiss.StandardGpuResources(), dim, faiss.METRIC_INNER_PRODUCT, config
        )
        indexed = faiss.IndexIDMap(graph)
        indexed.add_with_ids(vectors, ids)
        return faiss.index_gpu_to_cpu(indexed)
    except (RuntimeError, MemoryError) as error:
        raise BackendError(
            f"index {factory!r}: cuda:{card} cannot make it: {reason(error)}; use HNSW32"
        ) from error


def _card(device: str) -> int:
    """The number of the GPU that "cuda:1" names; the first."""
    return int(device.partition(":")[2] or 0)


@cache
def _resources(card: int) -> Any:
    """FAISS's handles and memory of one GPU, shared by all files on it."""
    made = import_faiss().StandardGpuResources()
    made.setTempMemory(_CARD_SCRATCH_BYTES)
    return made


def _cards(device: str, size: int, count: int, factory: str) -> list[int]:
    """The GPUs that are to hold `size` bytes of `count` vectors."""
    import torch

    named = torch.device(device).index
    cards = list(range(torch.cuda.device_count())) if named is None else [named]
    free = [max(0, torch.cuda.mem_get_info(card)[0] - _CARD_SCRATCH_BYTES) for card in cards]
    room = min(free) * len(free)
    if size > max(room, free[0]):
        raise BackendError(
            f"device {device!r}: {count:,} vectors as {factory} take {size / 2**30:.2f} GiB,"
            f" but {room / 2**30:.2f} GiB are free on {len(cards)} GPU{'s' * (len(cards) > 1)},"
            f" enough for {count * room // size:,} vectors: free memory, divide the index, or"
            " do it on the CPU"
        )
    return cards[:1] if size <= free[0] else cards
