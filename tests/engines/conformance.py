"""What an engine must do, as tests: inherit from `EngineConformance`, and pytest runs them.

    class TestMine(EngineConformance):
        lacks = frozenset({"our-statistics"})  # what it does otherwise, of `LACKS`

        def address(self, name: str) -> str:
            return f"mine://localhost/{name}"  # nothing is there yet

Everything goes the way of users: documents are published, searched, updated and removed by address,
and compared with an index directory of the same documents.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from aveyb_retrieval.engines.publish import publish_index, unpublish_documents
from aveyb_retrieval.errors import AveyBError, ConfigError, IndexFormatError, InputError
from aveyb_retrieval.indexes.changes.update import build_index
from aveyb_retrieval.indexes.search.retriever import Retriever
from aveyb_retrieval.indexes.types import EncodedRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aveyb_retrieval.indexes.search.hit import Hit
    from aveyb_retrieval.indexes.types import FloatArray

LACKS = {
    "our-statistics": "BM25 counts otherwise: scores by words differ, though hardly their order",
    "fresh-statistics": "BM25 counts what was removed until the collection is published again",
    "versions": "a reader that is open does not keep to the publication that it opened",
}
TOLERANCE = 1e-4
QUERY = "zinc hull word1 word17"
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"year": 2004},
    {"year": 2004.0},
    {"year": "2004"},
    {"year": {"$ne": 2004}},
    {"year": {"$gte": 2010, "$lt": 2013}},
    {"tags": "a"},
    {"tags": {"$in": ["a", "f", 3]}},
    {"tags": {"$nin": ["a", "d"]}},
    {"tags": {"$contains": "b"}},
    {"tags": {"$all": ["a", "d"]}},
    {"tags": {"$gt": "e"}},
    {"tags": {"$exists": False}},
    {"tags": {"$is_empty": True}},
    {"missing": None},
    {"missing": {"$ne": 1}},
    {"$and": [{"year": {"$gt": 2003}}, {"tags": "a"}]},
    {"$or": [{"year": 2004}, {"tags": "e"}]},
    {"$not": {"year": {"$gt": 2003}, "tags": "a"}},
    {"deep.key": "a\"b' % \\"},
)
CONDITIONS = (
    '"zinc hull"',
    "+zinc +hull",
    "word1 -word3",
    "+word1 -word2 hull",
    'word1 -"the hull"',
    "+京都",
    "+brulee",
    "zin*",
    "znic~",
    "+nowhere",
)
_NUMBERS = itertools.count()


class HashEncoder:
    """A model for tests: a word is a vector of its hash, a text the mean of its words, a passage
    eight words.
    """

    dim = 16
    fingerprint = hashlib.sha256(b"aveyb_retrieval.conformance").hexdigest()
    model_name = "conformance"

    def encode_documents(self, documents: Iterable[tuple[str, str]]) -> Iterator[EncodedRow]:
        """Encode (prefix, text) pairs."""
        for prefix, text in documents:
            words = [
                (m.group().lower(), m.start(), m.end()) for m in re.finditer(r"\w+", prefix + text)
            ]
            groups = [words[start : start + 8] for start in range(0, len(words), 8)]
            means = [
                np.mean([_word_vector(word) for word, _, _ in group], axis=0) for group in groups
            ]
            passages = np.array([_unit(mean) for mean in means], np.float32).reshape(-1, self.dim)
            spans = np.array([(group[0][1], group[-1][2]) for group in groups], np.int64).reshape(
                -1, 2
            ) - len(prefix)
            whole = _unit(sum((_word_vector(word) for word, _, _ in words), np.zeros(self.dim)))
            yield EncodedRow(whole, passages, spans.clip(0, len(text)), n_tokens=len(words))

    def encode_queries(self, queries: Sequence[str]) -> FloatArray:
        """Encode queries into `[n, d]` unit rows."""
        return np.array(
            [next(self.encode_documents([("", query)])).vector for query in queries], np.float32
        )

    def token_vectors(self, texts: Sequence[str], *, prompt: str) -> list[FloatArray]:
        """The vectors of the words of texts."""
        return [
            np.array([_word_vector(w) for w in re.findall(r"\w+", text.lower())], np.float32)
            for text in texts
        ]


MODEL = HashEncoder()


def make_documents(count: int, *, first: int = 0) -> list[dict[str, Any]]:
    """Documents of random words, with a year and tags; every tenth has no text."""
    made = []
    for i in range(first, first + count):
        rng = random.Random(i)  # the same documents every time
        text = (
            ""
            if i % 10 == 9
            else " ".join(f"word{rng.randrange(300)}" for _ in range(rng.randint(1, 60)))
        )
        about = {"year": 2000 + i % 20, "tags": [rng.choice("abc"), rng.choice("def")]}
        made.append(
            {
                "_id": f"doc-{i}",
                "title": f"Title {i}" if i % 3 else "",
                "text": text,
                "metadata": about,
            }
        )
    return made


LIBRARY = [
    *make_documents(116),
    {
        "_id": "zinc",
        "title": "Zinc",
        "text": "zinc protects the hull of ships at sea. " * 9,
        "metadata": {"year": 1999},
    },
    {
        "_id": "kyoto",
        "title": "京都",
        "text": "京都は日本の古い都市です。 word1",
        "metadata": {"tags": []},
    },
    {
        "_id": "café",
        "title": "Café",
        "text": "Crème brûlée is served. word3",
        "metadata": {"deep": {"key": "a\"b' % \\"}},
    },
]


class EngineConformance:
    """The tests. An instance is made for each of them."""

    lacks: ClassVar[frozenset[str]] = frozenset()

    def address(self, name: str) -> str:
        """The address of a collection of this name (a-z and 0-9), under which nothing is yet."""
        raise NotImplementedError

    # --- searches --------------------------------------------------------------------------------

    @pytest.fixture(scope="class")
    def both(
        self, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[tuple[Retriever, Retriever]]:
        """The library in this engine, and in an index directory."""
        folder = tmp_path_factory.mktemp("conformance")
        build_index(LIBRARY, folder / "index", model=MODEL)
        address = self.fresh()
        publish_index(folder / "index", address)
        with (
            Retriever.load(address, model=MODEL) as found,
            Retriever.load(folder / "index", model=MODEL) as wanted,
        ):
            yield found, wanted

    @pytest.mark.parametrize("unit", ["document", "passage"])
    @pytest.mark.parametrize(
        "options",
        [{}, {"exact": True}, {"filter": {"year": {"$gte": 2010}}}, {"min_score": 0.3}],
        ids=str,
    )
    def test_the_nearest_vectors(
        self, both: tuple[Retriever, Retriever], unit: Any, options: dict[str, Any]
    ) -> None:
        """Hits by vectors are those of an index directory."""
        self.same(both, QUERY, mode="dense", unit=unit, **options)

    @pytest.mark.parametrize("mode", ["lexical", "hybrid"])
    @pytest.mark.parametrize("options", [{}, {"filter": {"year": {"$gte": 2005}}}], ids=str)
    def test_words_of_documents(
        self, both: tuple[Retriever, Retriever], mode: Any, options: dict[str, Any]
    ) -> None:
        """The ten best of a hundred queries (twenty under a filter) by words, and by both, are
        those of a directory.
        """
        common, count = 0.0, 20 if options else 100
        for number in range(count):
            query = f"word{number} word{3 * number % 300} word{7 * number % 300}"
            found, wanted = (
                {h.id for h in each.search(query, 10, mode=mode, **options)} for each in both
            )
            common += len(found & wanted) / max(len(wanted), 1) if wanted or found else 1
        assert common >= (0.9 if "our-statistics" in self.lacks else 0.99) * count

    @pytest.mark.parametrize("query", [QUERY, "京都"])
    def test_words_of_passages(self, both: tuple[Retriever, Retriever], query: str) -> None:
        """Hits for passages by words and vectors are those of an index directory, with their
        scores.
        """
        self.same(both, query, unit="passage")

    @pytest.mark.parametrize("unit", ["document", "passage"])
    def test_scores_by_words(self, both: tuple[Retriever, Retriever], unit: Any) -> None:
        """They are those of an index directory."""
        self.needs("our-statistics")
        self.same(both, QUERY, mode="lexical", unit=unit)
        if unit == "document":  # those of passages are ours: the test before this one
            self.same(both, QUERY)

    @pytest.mark.parametrize("options", [{}, {"unit": "passage", "fold": False}], ids=str)
    @pytest.mark.parametrize("query", ["京都", "brulee", "Ship's HULL", "nosuchwordatall"])
    def test_what_words_find(
        self, both: tuple[Retriever, Retriever], query: str, options: dict[str, Any]
    ) -> None:
        """The same documents and passages hold a word."""
        found, wanted = (
            sorted(map(_key, each.search(query, 200, mode="lexical", **options))) for each in both
        )
        assert found == wanted

    @pytest.mark.parametrize("unit", ["document", "passage"])
    @pytest.mark.parametrize("query", CONDITIONS)
    def test_conditions(self, both: tuple[Retriever, Retriever], query: str, unit: Any) -> None:
        """What is found fulfills them as in an index directory, or they are refused in one line."""
        found, wanted = both
        options: Any = {"operators": True, "mode": "dense", "unit": unit} | (
            {"fold": False} if unit == "passage" else {}
        )
        try:
            hits = found.search(query, 1000, **options)
        except ConfigError as error:
            assert "\n" not in str(error)
            return
        assert sorted(map(_key, hits)) == sorted(map(_key, wanted.search(query, 1000, **options)))

    @pytest.mark.parametrize("where", FILTERS, ids=str)
    def test_filters(self, both: tuple[Retriever, Retriever], where: dict[str, Any]) -> None:
        """A filter lets through what it does in an index directory, or is refused."""
        found, wanted = both
        try:
            ids = sorted(document.id for document in found.documents(where))
        except ConfigError:
            return
        assert ids == sorted(document.id for document in wanted.documents(where))
        assert found.count(where) == len(ids)
        for options in ({"mode": "dense"}, {"mode": "dense", "unit": "passage", "fold": False}):
            hits = found.search(QUERY, 1000, filter=where, **options)
            assert {h.id for h in hits} == {
                h.id for h in wanted.search(QUERY, 1000, filter=where, **options)
            }

    @pytest.mark.parametrize("where", [{"year": {"$near": 3}}, {"year": {"$gt": None}}, {"": 1}])
    def test_filters_that_mean_nothing(self, both: tuple[Retriever, Retriever], where: Any) -> None:
        """They are errors."""
        with pytest.raises(ConfigError, match="filter"):
            both[0].search(QUERY, 3, mode="dense", filter=where)

    def test_documents_come_back(self, both: tuple[Retriever, Retriever]) -> None:
        """By id, and all of them in parts."""
        found, wanted = both
        assert found.get(["zinc", "café", "zinc"]) == wanted.get(["zinc", "café", "zinc"])
        assert found.get(["nobody", "zinc"], missing_ok=True) == wanted.get(["zinc"])
        with pytest.raises(InputError, match="nobody"):
            found.get(["nobody"])
        whole = [document.id for document in found.documents()]
        assert sorted(whole) == sorted(document.id for document in wanted.documents())
        assert [document.id for document in found.documents(limit=7, offset=50)] == whole[50:57]
        assert len(found) == found.count() == len(whole)

    # --- changes ---------------------------------------------------------------------------------

    def test_updates_and_removals(self) -> None:
        """What is written is there at once and for later readers, and what is removed is not."""
        address = self.filled(make_documents(30))
        changed = [
            {**row, "title": "New", "text": f"newword {row['text']}"}
            for row in make_documents(10, first=25)
        ]
        for _ in range(2):  # again changes nothing
            self.update(address, changed)
        removed = {"doc-3", "doc-27"}
        assert unpublish_documents(address, sorted(removed)) == 2
        rows = [row for row in make_documents(25) + changed if row["_id"] not in removed]
        with Retriever.load(address, model=MODEL) as found, tempfile.TemporaryDirectory() as folder:
            build_index(rows, Path(folder) / "index", model=MODEL)
            with Retriever.load(Path(folder) / "index", model=MODEL) as wanted:
                self.same((found, wanted), QUERY, mode="dense")
                self.same((found, wanted), QUERY, mode="dense", unit="passage")
                if self.lacks.isdisjoint({"fresh-statistics", "our-statistics"}):
                    self.same((found, wanted), QUERY, mode="lexical", unit="passage")
            assert {h.id for h in found.search("newword", 50, mode="lexical")} == {
                row["_id"] for row in changed if row["_id"] not in removed
            }
        with pytest.raises(InputError, match="nobody"):
            unpublish_documents(address, ["doc-1", "nobody"])
        assert unpublish_documents(address, where={}) == len(rows)
        with Retriever.load(address, model=MODEL) as found:
            assert (len(found), found.search(QUERY), list(found.documents())) == (0, [], [])

    def test_odd_ids_and_metadata(self) -> None:
        """Any text is an id, and metadata come back as they were."""
        names = [
            "ä/ö?ü#",
            "日本語",
            "a b\tc",
            "'; DROP TABLE documents; --",
            '"quoted" \\ back',
            "%s {x} $1",
            "A",
            "a",
        ]
        metadata = {
            "z": 1,
            "a": [1, 2.5, None, True, "x", {"deep": []}],
            "small": 1e-300,
            "one": 1.0,
            "none": None,
        }
        address = self.filled(
            [{"_id": name, "text": "word1", "metadata": metadata} for name in names]
        )
        with Retriever.load(address, model=MODEL) as found:
            assert [document.id for document in found.get(names)] == names
            # types are those that were given, which == does not tell; the order of fields is
            # nobody's promise
            kept = found.get(names[:1])[0].metadata
            assert repr(sorted(kept.items())) == repr(sorted(metadata.items()))

    def test_a_new_publication(self) -> None:
        """A reader keeps to the publication that it opened until it is opened again."""
        self.needs("versions")
        address = self.filled(make_documents(10))
        with Retriever.load(address, model=MODEL) as found:
            self.filled(make_documents(4, first=50), address)
            assert found.is_stale
            assert len(found.search(QUERY, 50, mode="dense")) == 10
            found.reopen()
            assert not found.is_stale
            assert len(found.search(QUERY, 50, mode="dense")) == 4

    def test_an_interrupted_publication(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """It shows nothing, and goes on where it was."""
        monkeypatch.setattr("aveyb_retrieval.engines.publish.BATCH_DOCUMENTS", 10)
        build_index(make_documents(40), tmp_path / "made", model=MODEL)
        address = self.fresh()

        def stop(stage: str, done: int, total: int | None, tokens: int) -> None:
            if done >= 20:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            publish_index(tmp_path, address, progress=stop)
        with pytest.raises(IndexFormatError):
            Retriever.load(address, model=MODEL)
        report = publish_index(tmp_path, address)
        assert (report.documents, report.written) == (40, 20)
        with Retriever.load(address, model=MODEL) as found:
            assert sorted(d.id for d in found.documents()) == sorted(
                row["_id"] for row in make_documents(40)
            )

    def test_nothing_there_and_nothing_open(self) -> None:
        """Both are errors of ours."""
        with pytest.raises(AveyBError):
            Retriever.load(self.fresh(), model=MODEL)
        found = Retriever.load(self.filled(make_documents(2)), model=MODEL)
        found.close()
        found.close()
        with pytest.raises(AveyBError, match="closed"):
            found.search("word1", mode="dense")

    # --- inside ----------------------------------------------------------------------------------

    def fresh(self) -> str:
        """An address under which nothing is."""
        return self.address(f"c{next(_NUMBERS)}")

    def filled(self, rows: list[dict[str, Any]], address: str | None = None) -> str:
        """The address of a collection of these documents."""
        address = address or self.fresh()
        with tempfile.TemporaryDirectory() as folder:
            build_index(rows, folder, model=MODEL)
            publish_index(folder, address)
        return address

    def update(self, address: str, rows: list[dict[str, Any]]) -> None:
        """Upsert documents."""
        with tempfile.TemporaryDirectory() as folder:
            build_index(rows, folder, model=MODEL)
            publish_index(folder, address, update=True)

    def needs(self, name: str) -> None:
        """Skip a test, by name, where the engine does something otherwise."""
        if name in self.lacks:
            pytest.skip(f"{name}: {LACKS[name]}")

    def same(self, both: tuple[Retriever, Retriever], query: str, **options: Any) -> None:
        """Both give the same scores, and the same hits but for those that tie with the last one."""
        found, wanted = (each.search(query, 10, **options) for each in both)
        assert [hit.score for hit in found] == pytest.approx(
            [hit.score for hit in wanted], abs=TOLERANCE
        )
        theirs = {_key(hit) for hit in found}
        assert (
            not wanted
            or {_key(h) for h in wanted if h.score > wanted[-1].score + TOLERANCE} <= theirs
        )


def _key(hit: Hit) -> tuple[str, str, tuple[int, int] | None, str]:
    return hit.id, hit.title, hit.span, hit.text


@cache
def _word_vector(word: str) -> FloatArray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
    return _unit(np.random.default_rng(seed).normal(size=HashEncoder.dim))


def _unit(vector: Any) -> FloatArray:
    length = float(np.linalg.norm(vector))
    return np.asarray(vector / length if length else vector, dtype=np.float32)
