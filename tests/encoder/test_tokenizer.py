"""The tokenizer: exact round trips, offsets, the AutoTokenizer view, and folders that cannot be
used.
"""

import base64
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aveyb_retrieval.encoder.text.tokenizer import (
    GPT2_PATTERN,
    MAX_RUN_CHARACTERS,
    SPECIAL_TOKENS,
    AveyBTokenizer,
)
from aveyb_retrieval.errors import InputError, ModelError
from tests.refusals import Refusal, refusals

SHARED = Path(os.environ.get("AVEYB_SHARED", Path(__file__).parents[3] / "shared"))
MERGES = [
    b"th",
    b"the",
    b" the",
    b"he",
    b" t",
    b"in",
    b"ing",
    b"  ",
    b"    ",
    b"\n\n",
    "é".encode(),
    b"er",
    b" a",
    b"12",
]
TRICKY = [
    "",
    "the thing in the ring",
    "don't say [MASK], [PAD] or <|endoftext|>",
    "café ☕ 日本語 🙂🙂 na\u0308ive",
    "tabs\tand\r\nnew  lines \n\n\n   end   ",
    "1234567890 3.14",
    "\u2028\x85\xa0\u3000 odd spaces \x1c\x00\x7f",
    "\ufeffbom and \u200bzero width",
]


@pytest.fixture(scope="module")
def tokenizer() -> AveyBTokenizer:
    return AveyBTokenizer.from_ranks([bytes([b]) for b in range(256)] + MERGES, name="tiny")


@pytest.fixture(scope="module")
def folder(tokenizer: AveyBTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(path)
    return path


@pytest.fixture(scope="module")
def auto(folder: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def p50k() -> AveyBTokenizer:
    if "TIKTOKEN_CACHE_DIR" not in os.environ:
        cache = SHARED / "data" / "tokenizers" / "tiktoken_cache"
        if not cache.is_dir():
            pytest.skip("p50k_base needs TIKTOKEN_CACHE_DIR or ../shared/data/tokenizers")
        os.environ["TIKTOKEN_CACHE_DIR"] = str(cache)
    return AveyBTokenizer.p50k_base()


def naive_offsets(tokenizer: AveyBTokenizer, text: str, ids: np.ndarray) -> list[tuple[int, int]]:
    """Offsets by walking the bytes one token at a time."""
    owner = [i for i, character in enumerate(text) for _ in character.encode()]
    result, position = [], 0
    for i in ids.tolist():
        end = position + len(tokenizer.decode_bytes([i]))
        result.append((owner[position], owner[end - 1] + 1))
        position = end
    return result


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
@settings(max_examples=300, deadline=None)
def test_round_trip_and_offsets(tokenizer: AveyBTokenizer, text: str) -> None:
    ids, offsets = tokenizer.encode(text)
    assert ids.dtype == np.int32 and offsets.dtype == np.int64 and offsets.shape == (len(ids), 2)
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == text
    assert offsets.tolist() == [list(pair) for pair in naive_offsets(tokenizer, text, ids)]
    assert np.array_equal(tokenizer.encode_ids(text), ids)


@given(
    st.text(
        alphabet=st.characters(exclude_categories=["Cs", "Cn"], max_codepoint=0x2FFF), max_size=100
    )
)
@settings(max_examples=300, deadline=None)
def test_auto_tokenizer_gives_the_same_ids(tokenizer: AveyBTokenizer, auto, text: str) -> None:
    assert auto(text)["input_ids"] == tokenizer.encode(text)[0].tolist()


@pytest.mark.parametrize("text", TRICKY)
def test_tricky_texts(tokenizer: AveyBTokenizer, auto, text: str) -> None:
    ids, _ = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert auto(text)["input_ids"] == ids.tolist()
    assert not set(ids.tolist()) & set(tokenizer.special_tokens.values())


def test_character_split_over_tokens_gives_whole_character(tokenizer: AveyBTokenizer) -> None:
    ids, offsets = tokenizer.encode("a🙂b")
    assert len(ids) == 6
    assert offsets.tolist() == [[0, 1], [1, 2], [1, 2], [1, 2], [1, 2], [2, 3]]


def test_special_tokens_follow_the_ranks(tokenizer: AveyBTokenizer, auto) -> None:
    first = 256 + len(MERGES)
    assert [tokenizer.special_tokens[t] for t in SPECIAL_TOKENS] == list(range(first, first + 5))
    assert tokenizer.vocab_size == first + 5 == len(tokenizer)
    assert (auto.pad_token_id, auto.mask_token_id) == (tokenizer.pad_id, tokenizer.mask_id)
    assert auto.model_max_length > 10**9


def test_special_tokens_keep_their_ids_wherever_they_are(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    special = {"<|endoftext|>": 10, "[PAD]": 0} | {
        token: 270 + i for i, token in enumerate(SPECIAL_TOKENS[1:])
    }
    free = [i for i in range(270) if i not in special.values()]
    ranks = dict(zip([*(bytes([b]) for b in range(256)), *MERGES[:12]], free, strict=True))
    made = AveyBTokenizer(ranks, pattern=GPT2_PATTERN, special_tokens=special, vocab_size=274)
    made.save(tmp_path)
    auto = AutoTokenizer.from_pretrained(tmp_path)
    assert auto.convert_tokens_to_ids(list(special)) == list(special.values())
    for text in TRICKY:
        assert auto(text)["input_ids"] == made.encode(text)[0].tolist()


def test_auto_tokenizer_setting_survives_its_own_save(auto, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    auto.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("the [MASK]")["input_ids"] == auto("the [MASK]")["input_ids"]
    assert auto.mask_token_id not in again("the [MASK]")["input_ids"]


@pytest.mark.parametrize(
    "text",
    ["x" * 1_000_000, " " * 1_000_000, "日" * 300_000, "\n" * 1_000_000 + "x", "ab9." * 250_000],
    ids=["letters", "blanks", "multibyte", "newlines", "mixed"],
)
def test_a_million_characters_without_a_break(tokenizer: AveyBTokenizer, text: str) -> None:
    start = time.process_time()
    ids, offsets = tokenizer.encode(text)
    assert time.process_time() - start < 20
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert offsets[-1, 1] == len(text)


@pytest.mark.parametrize(
    "length",
    [
        MAX_RUN_CHARACTERS - 1,
        MAX_RUN_CHARACTERS,
        MAX_RUN_CHARACTERS + 1,
        3 * MAX_RUN_CHARACTERS,
        3 * MAX_RUN_CHARACTERS + 7,
    ],
)
@pytest.mark.parametrize("character", ["x", " ", "é", "\n", "."])
def test_long_runs_are_cut_the_same_way_in_both_views(
    tokenizer: AveyBTokenizer, auto, length: int, character: str
) -> None:
    text = f"the ring {character * length} thing in"
    ids, _ = tokenizer.encode(text)
    assert auto(text)["input_ids"] == ids.tolist()
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("lines", [50_000, pytest.param(250_000, marks=pytest.mark.slow)])
def test_megabytes(tokenizer: AveyBTokenizer, lines: int) -> None:
    text = "the thing in the ring, 12 times over é \n" * lines
    _ids, offsets = tokenizer.encode(text)
    assert offsets[-1, 1] == len(text) and (np.diff(offsets[:, 0]) >= 0).all()


@refusals(
    {
        InputError: {
            r"character 3 .* U\+D800": lambda tokenizer: tokenizer.encode("abc\ud800"),
            "must be a str": lambda tokenizer: tokenizer.encode(b"bytes"),
        },
    }
)
def test_what_is_no_text_is_refused(tokenizer: AveyBTokenizer, refused: Refusal) -> None:
    refused(tokenizer)


@pytest.mark.parametrize("ids", [[-1], [10_000], [1, 2, 275]])
def test_ids_without_a_token(tokenizer: AveyBTokenizer, ids: list[int]) -> None:
    with pytest.raises(InputError, match="has no token"):
        tokenizer.decode(ids)


def test_saved_folder_loads_equal(tokenizer: AveyBTokenizer, folder: Path) -> None:
    again = AveyBTokenizer.load(folder)
    assert again.ranks == tokenizer.ranks and again.special_tokens == tokenizer.special_tokens
    assert again.vocab_size == tokenizer.vocab_size and again.pattern == tokenizer.pattern


def copy_of(folder: Path, target: Path) -> Path:
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def change_settings(folder: Path, **fields: object) -> None:
    path = folder / "aveyb_tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def cut_the_vocabulary(folder: Path) -> None:
    path = folder / "vocab.tiktoken"
    path.write_bytes(path.read_bytes()[:-8])


@refusals(
    {
        ModelError: {
            "is missing": shutil.rmtree,
            r"vocab\.tiktoken is missing": lambda folder: (folder / "vocab.tiktoken").unlink(),
            "SHA-256": cut_the_vocabulary,
            "is not JSON": lambda folder: (folder / "aveyb_tokenizer.json").write_text("{"),
            "not JSON of an object": lambda folder: (folder / "aveyb_tokenizer.json").write_text(
                "[]"
            ),
            r"pattern 'x\*' cannot be used": lambda folder: change_settings(folder, pattern="x*"),
        },
    }
)
def test_a_folder_that_cannot_be_loaded_is_refused(
    folder: Path, tmp_path: Path, refused: Refusal
) -> None:
    (tmp_path / "copy").mkdir()
    copy_of(folder, tmp_path / "copy")
    refused.then(lambda path: AveyBTokenizer.load(path).encode("abc"), tmp_path / "copy")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not-base64! 300", "line 271"),
        (b"YWI= many", "line 271"),
        (b"YWI=", "line 271"),
        (b"dGg= 270", "occurs twice"),
    ],
)
def test_bad_vocabulary_lines(folder: Path, tmp_path: Path, line: bytes, reason: str) -> None:
    import hashlib

    copy_of(folder, tmp_path)
    data = (tmp_path / "vocab.tiktoken").read_bytes() + line + b"\n"
    (tmp_path / "vocab.tiktoken").write_bytes(data)
    change_settings(tmp_path, vocab_sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(ModelError, match=reason):
        AveyBTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"format": 99}, "format is 99"),
        ({"pattern": 3}, r"Expected `str`, got `int` - at `\$\.pattern`"),
        ({"pattern": "(unclosed"}, "pattern"),
        ({"vocab_size": 10}, "vocab_size is 10"),
        ({"vocab_size": 10**12}, "vocab_size is more than 127 above"),
        ({"vocab_size": True}, r"Expected `int`, got `bool` - at `\$\.vocab_size`"),
        ({"special_tokens": {"[PAD]": 270}}, "are missing"),
        (
            {"special_tokens": {t: 270 for t in SPECIAL_TOKENS}},
            "without a gap, each once; these are 271 from",
        ),
        ({"special_tokens": {t: 300 + i for i, t in enumerate(SPECIAL_TOKENS)}}, "without a gap"),
        (
            {"special_tokens": {t: "x" for t in SPECIAL_TOKENS}},
            r"Expected `int`, got `str` - at `\$\.special_tokens",
        ),
    ],
)
def test_bad_settings(folder: Path, tmp_path: Path, fields: dict[str, object], reason: str) -> None:
    copy_of(folder, tmp_path)
    change_settings(tmp_path, **fields)
    with pytest.raises(ModelError, match=reason):
        AveyBTokenizer.load(tmp_path)


@refusals(
    {
        ModelError: {
            "1 of the 256 single bytes": lambda: AveyBTokenizer.from_ranks(
                [bytes([b]) for b in range(255)]
            ),
            "has ranks 97 and 256": lambda: AveyBTokenizer.from_ranks(
                [*(bytes([b]) for b in range(256)), b"a"]
            ),
        },
    }
)
def test_a_vocabulary_without_every_byte_once_is_refused(refused: Refusal) -> None:
    refused()


def test_vocabulary_file_is_tiktokens_format(folder: Path, tokenizer: AveyBTokenizer) -> None:
    lines = (folder / "vocab.tiktoken").read_text().splitlines()
    assert lines[258] == f"{base64.b64encode(b' the').decode()} 258"
    assert len(lines) == len(tokenizer.ranks)


def test_p50k_base_matches_tiktoken(p50k: AveyBTokenizer, tmp_path: Path) -> None:
    import tiktoken
    from transformers import AutoTokenizer

    reference = tiktoken.get_encoding("p50k_base")
    assert p50k.vocab_size == 50_304
    assert p50k.mask_id == 50_285
    for text in TRICKY:
        assert p50k.encode(text)[0].tolist() == reference.encode_ordinary(text)
    p50k.save(tmp_path)
    auto = AutoTokenizer.from_pretrained(tmp_path)
    assert auto.convert_tokens_to_ids(list(p50k.special_tokens)) == list(
        p50k.special_tokens.values()
    )
    assert auto.convert_ids_to_tokens([50_280]) == ["Ġ" * 25]


def real_texts(count: int) -> list[str]:
    paths = [
        SHARED / "data" / name / "corpus.jsonl"
        for name in ("scifact", "medquad", "nq-gold", "openstax-ccby-long")
    ]
    if not all(path.is_file() for path in paths):
        pytest.skip("needs the corpora in ../shared/data")
    texts = []
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            texts += [
                json.loads(line)["text"][:20_000]
                for _, line in zip(range(count // 4), lines, strict=False)
            ]
    return texts


# openstax has 414 sections
@pytest.mark.parametrize("count", [400, pytest.param(1_656, marks=pytest.mark.slow)])
@pytest.mark.parametrize("which", ["p50k", "tokenizer"])
def test_auto_tokenizer_on_real_texts(
    which: str, count: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    texts = real_texts(count)
    tokenizer: AveyBTokenizer = request.getfixturevalue(which)
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)(texts)["input_ids"]
    for text, expected in zip(texts, theirs, strict=True):
        assert tokenizer.encode(text)[0].tolist() == expected


def test_a_mask_is_read_when_it_is_asked_for(folder: Path, tokenizer: AveyBTokenizer) -> None:
    import torch
    from transformers import AutoTokenizer, pipeline

    from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM
    from tests.encoder.models import small_config

    text = "the [MASK] in [MASK][PAD]"
    masked = AutoTokenizer.from_pretrained(folder, split_special_tokens=False)
    plain = AutoTokenizer.from_pretrained(folder)
    assert plain.mask_token_id not in plain(text)["input_ids"]
    assert masked(text)["input_ids"].count(masked.mask_token_id) == 2
    assert plain("the thing")["input_ids"] == masked("the thing")["input_ids"]

    torch.manual_seed(0)
    model = AveyBForMaskedLM(small_config("paper", vocab_size=tokenizer.vocab_size)).eval()
    fill = pipeline("fill-mask", model=model, tokenizer=masked)
    found = fill("the [MASK] in the ring", top_k=3)
    ids = masked("the [MASK] in the ring", return_tensors="pt")["input_ids"]
    place = int((ids[0] == masked.mask_token_id).nonzero())
    with torch.no_grad():
        best = model(ids).logits[0, place].topk(3).indices.tolist()
    assert [each["token"] for each in found] == best
