"""Byte-level BPE with tiktoken underneath: ids, exact character offsets, byte-exact decoding.

A vocabulary is a list of byte strings ranked by merge order, a pre-tokenization pattern, and a few
special tokens after the ranks. Special tokens are never added to texts and never recognized in
them: "[MASK]" in a document is ordinary text, and appending to a document does not move a closing
token.

`save` writes two formats of one vocabulary with identical ids: `vocab.tiktoken` +
`aveyb_tokenizer.json` for this class, and `tokenizer.json` + `tokenizer_config.json` for
`transformers.AutoTokenizer`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import tiktoken

from aveyb_retrieval.encoder.model_folders import read_object
from aveyb_retrieval.encoder.text.knowledge import Knowledge
from aveyb_retrieval.errors import InputError, ModelError, extra_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import tokenizers

VOCAB_FILE = "vocab.tiktoken"
SETTINGS_FILE = "aveyb_tokenizer.json"
FORMAT_VERSION = 3

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# GPT-2's pattern, which p50k_base shares: contractions, words, numbers, punctuation, each with one
# leading space.
GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# The same with numbers cut into groups of three digits, so that a small vocabulary is not spent on
# years and prices.
WORDS_PATTERN = GPT2_PATTERN.replace(r"\p{N}+", r"\p{N}{1,3}")

# BPE's cost grows faster than the length of one pre-token, and the pattern backtracks over white
# space. So runs without white space, and runs of white space, are cut into blocks of this many
# characters before the pattern is applied. tokenizer.json makes the same cut; ordinary text has
# only shorter runs, which are not changed.
MAX_RUN_CHARACTERS = 1024
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_LONG_RUN = re.compile(
    rf"(?<![^{_SPACE}])(?:[^{_SPACE}]{{{MAX_RUN_CHARACTERS}}})+|(?<![{_SPACE}])(?:[{_SPACE}]{{{MAX_RUN_CHARACTERS}}})+"
)

P50K_ROWS = 50_304
_MAX_PADDING_ROWS = (
    127  # unused rows of an embedding: tables are padded to a multiple of 128 at most
)


class Vocabulary:
    """What every vocabulary says of its ids.

    Attributes:
        vocab_size: rows of the embedding, at least the highest id + 1.
        special_tokens: name -> id, at least [PAD] [UNK] [CLS] [SEP] [MASK].
        name: shown in messages.
    """

    def __init__(self, name: str, vocab_size: int, special_tokens: Mapping[str, int]) -> None:
        self.name, self.vocab_size, self.special_tokens = name, vocab_size, dict(special_tokens)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            special_tokens[t] for t in SPECIAL_TOKENS
        )

    def __len__(self) -> int:
        return self.vocab_size

    def check_embeddings(self, rows: int, where: str) -> None:
        """Raise ModelError where this vocabulary, called `where`, cannot be that of a model with
        `rows` embeddings.
        """
        if not 0 <= rows - self.vocab_size <= _MAX_PADDING_ROWS:
            raise ModelError(
                f"{where}: tokenizer {self.name} has {self.vocab_size} ids, the model {rows}"
                " embeddings: they belong to different models"
            )


class AveyBTokenizer(Vocabulary):
    """A byte-level BPE vocabulary.

    Args:
        ranks: byte string -> id; holds all 256 single bytes; every pair whose join has an id can be
            merged.
        pattern: pre-tokenization regular expression (no look-behind, no possessive quantifiers).
        special_tokens: name -> id, outside the ranks; holds at least [PAD] [UNK] [CLS] [SEP]
            [MASK].
        vocab_size: rows of the embedding table, at least highest id + 1.
        name: shown in messages.

    Raises:
        ModelError: the parts do not fit together.
    """

    def __init__(
        self,
        ranks: Mapping[bytes, int],
        *,
        pattern: str,
        special_tokens: Mapping[str, int],
        vocab_size: int,
        name: str = "aveyb",
    ) -> None:
        _check_vocabulary(ranks, special_tokens, vocab_size, name)
        super().__init__(name, vocab_size, special_tokens)
        self.pattern, self.ranks = pattern, dict(ranks)
        try:
            self._bpe = tiktoken.Encoding(
                name, pat_str=pattern, mergeable_ranks=self.ranks, special_tokens={}
            )
        except ValueError as error:
            raise ModelError(
                f"{name}: the tokenizer's pattern {pattern!r} cannot be used: {error}"
            ) from error
        self._token_bytes: dict[int, bytes] = {rank: token for token, rank in self.ranks.items()}
        self._token_bytes |= {i: token.encode() for token, i in self.special_tokens.items()}
        self._byte_length = np.zeros(vocab_size, dtype=np.int64)
        self._byte_length[list(self.ranks.values())] = [len(token) for token in self.ranks]

    # -- construction -----------------------------------------------------------------------------

    @classmethod
    def p50k_base(cls) -> AveyBTokenizer:
        """Return the papers' vocabulary, p50k_base, padded to 50,304 rows.

        Raises ModelError: it cannot be had.
        """
        try:
            encoding = tiktoken.get_encoding("p50k_base")
        except OSError as error:
            raise ModelError(
                "p50k_base is not in tiktoken's cache and could not be downloaded: set"
                " TIKTOKEN_CACHE_DIR to a folder that holds it, or allow the download once"
                f" ({type(error).__name__}: {error})"
            ) from error
        special_tokens = {"<|endoftext|>": encoding.eot_token}
        special_tokens |= {token: encoding.n_vocab + i for i, token in enumerate(SPECIAL_TOKENS)}
        return cls(
            encoding._mergeable_ranks,
            pattern=GPT2_PATTERN,
            special_tokens=special_tokens,
            vocab_size=P50K_ROWS,
            name="p50k_base",
        )

    @classmethod
    def from_ranks(
        cls,
        tokens: Sequence[bytes],
        *,
        pattern: str = WORDS_PATTERN,
        name: str = "aveyb",
    ) -> AveyBTokenizer:
        """Build a vocabulary from byte strings in merge order; the five special tokens follow the
        last one.

        Raises ModelError: a byte string occurs twice, or one of the 256 single bytes is missing.
        """
        ranks = {token: rank for rank, token in enumerate(tokens)}
        for rank, token in enumerate(tokens):
            if ranks[token] != rank:
                raise ModelError(
                    f"{name}: token {token!r} has ranks {rank} and {ranks[token]}; each may occur"
                    " once"
                )
        return cls(
            ranks,
            pattern=pattern,
            special_tokens={token: len(tokens) + i for i, token in enumerate(SPECIAL_TOKENS)},
            vocab_size=len(tokens) + len(SPECIAL_TOKENS),
            name=name,
        )

    @classmethod
    def load(cls, folder: str | Path) -> AveyBTokenizer:
        """Read `vocab.tiktoken` and `aveyb_tokenizer.json` of a folder; ModelError: one is missing
        or damaged.
        """
        folder = Path(folder)
        settings_path, vocab_path = folder / SETTINGS_FILE, folder / VOCAB_FILE
        for path in (settings_path, vocab_path):
            if not path.is_file():
                raise ModelError(
                    f"{path} is missing: the folder holds no aveyb-retrieval tokenizer; save one"
                    " with .save"
                )
        read = read_object(settings_path)
        if read.get("format") != FORMAT_VERSION:
            raise ModelError(
                f"{settings_path}: format is {read.get('format')!r}, this version of"
                f" aveyb-retrieval reads {FORMAT_VERSION}; update the package or save the tokenizer"
                " again"
            )
        try:
            settings = msgspec.convert(read, _Settings, strict=True)
        except msgspec.ValidationError as error:
            raise ModelError(
                f"{settings_path}: {error}; restore the folder, or save the tokenizer again"
            ) from error
        data = vocab_path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest != settings.vocab_sha256:
            raise ModelError(
                f"{vocab_path} has SHA-256 {digest}, {settings_path.name} says"
                f" {settings.vocab_sha256}: one of the two was changed or damaged; restore the"
                " folder"
            )
        return cls(
            _read_ranks(data, vocab_path),
            pattern=settings.pattern,
            special_tokens=settings.special_tokens,
            vocab_size=settings.vocab_size,
            name=settings.name,
        )

    @classmethod
    def from_huggingface(cls, path: Path, vocab_size: int) -> AveyBTokenizer:
        """Read a `tokenizer.json` that `save` wrote, also where another tool has saved it again.

        `vocab_size`, the rows of the model's embedding, is not in the file. Raises ModelError: it
        is of another origin (see `is_byte_level`), or damaged.
        """
        content = read_object(path)
        byte_of = {character: byte for byte, character in printable_bytes().items()}
        try:
            special_tokens = {
                str(token["content"]): int(token["id"]) for token in content["added_tokens"]
            }
            ranks = {
                bytes(byte_of[character] for character in token): int(rank)
                for token, rank in content["model"]["vocab"].items()
                if token not in special_tokens
            }
            pattern = str(content["pre_tokenizer"]["pretokenizers"][1]["pattern"]["Regex"])
        except (KeyError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise ModelError(
                f"{path}: not the tokenizer of an Avey-B model ({type(error).__name__}: {error}),"
                f" and {VOCAB_FILE} is missing; copy {VOCAB_FILE} and {SETTINGS_FILE} from the"
                " model that this one was made of"
            ) from error
        if content.get("normalizer") is not None:
            raise ModelError(
                f"{path}: its normalizer changes texts before they are cut, which no tokenizer of"
                " an Avey-B model does; copy the tokenizer from the model that this one was made of"
            )
        return cls(
            ranks,
            pattern=pattern,
            special_tokens=special_tokens,
            vocab_size=vocab_size,
            name=str(path),
        )

    def save(self, folder: str | Path) -> None:
        """Write the vocabulary for this class and for `AutoTokenizer` into `folder` (created if
        needed).
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        ordered = sorted(self.ranks.items(), key=lambda item: item[1])
        data = b"".join(
            base64.b64encode(token) + b" " + str(rank).encode() + b"\n" for token, rank in ordered
        )
        (folder / VOCAB_FILE).write_bytes(data)
        settings = {
            "format": FORMAT_VERSION,
            "name": self.name,
            "pattern": self.pattern,
            "special_tokens": self.special_tokens,
            "vocab_size": self.vocab_size,
            "vocab_sha256": hashlib.sha256(data).hexdigest(),
        }
        (folder / SETTINGS_FILE).write_text(
            json.dumps(settings, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
        )
        self._huggingface_tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
        write_huggingface_config(folder)

    # -- use --------------------------------------------------------------------------------------

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return token ids int32 `[T]` and offsets int64 `[T, 2]`, the characters `[start, end)`
        that they come from.

        A token that holds only some of a character's bytes gets the offsets of the whole character.
        Raises InputError: `text` is not a string or holds a lone surrogate.
        """
        data, ids = utf8(text), self._ids(text)
        return ids, self._offsets(data, len(text), ids)

    def encode_words(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return of each text the ids int32 `[T]` of `encode`, and the characters at which they
        begin, int64 `[T]`.
        """
        return [(ids, offsets[:, 0]) for ids, offsets in map(self.encode, texts)]

    def _offsets(self, data: bytes, characters: int, ids: np.ndarray) -> np.ndarray:
        """Return character offsets int64 `[T, 2]` of the tokens of a text, given as UTF-8."""
        lengths = self._byte_length[ids]
        ends = np.cumsum(lengths)
        offsets = np.stack([ends - lengths, ends], axis=1)
        if len(data) != characters and len(ids):  # not pure ASCII: bytes to characters
            continuation = (np.frombuffer(data, dtype=np.uint8) & 0xC0) == 0x80
            # [bytes], the character each byte belongs to
            character = np.cumsum(~continuation, dtype=np.int64) - 1
            offsets[:, 0] = character[offsets[:, 0]]
            offsets[:, 1] = character[offsets[:, 1] - 1] + 1
        return offsets

    def encode_ids(self, text: str) -> np.ndarray:
        """Return the ids int32 `[T]` of `encode`, without the cost of the offsets."""
        utf8(text)
        return self._ids(text)

    @cached_property
    def knowledge(self) -> Knowledge:
        """How well a model with this vocabulary knows a text."""
        pieces: list[str | None] = [""] * self.vocab_size
        for token, number in self.ranks.items():
            try:
                pieces[number] = token.decode().strip(" ")
            except UnicodeDecodeError:
                pieces[number] = None
        return Knowledge(pieces)

    def decode_bytes(self, ids: Iterable[int] | np.ndarray) -> bytes:
        """Return the bytes of `ids` `[T]`, of special tokens their names.

        Raises InputError: an id has no token.
        """
        values = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids)).tolist()
        try:
            return b"".join([self._token_bytes[i] for i in values])
        except KeyError as error:
            raise InputError(
                f"{self.name}: id {error.args[0]} has no token; ids run from 0 to"
                f" {max(self._token_bytes)}"
            ) from None

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Return the text of `ids` `[T]`; bytes that are not UTF-8 (a cut inside a character)
        become U+FFFD.
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def _ids(self, text: str) -> np.ndarray:
        pieces = _cut_long_runs(text)
        try:
            arrays = [self._bpe.encode_to_numpy(piece, disallowed_special=()) for piece in pieces]
        except BaseException as error:
            # tiktoken's Rust code panics; the class cannot be imported
            if type(error).__name__ != "PanicException":
                raise
            raise ModelError(
                f"{self.name}: the tokenizer's pattern {self.pattern!r} cannot be used: a part of a"
                " text is empty by it"
            ) from error
        return (arrays[0] if len(arrays) == 1 else np.concatenate(arrays)).astype(np.int32)

    # -- the format of transformers ---------------------------------------------------------------

    def _huggingface_tokenizer(self) -> tokenizers.Tokenizer:
        with extra_for("writing a tokenizer.json"):
            from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

        printable = printable_bytes()

        def show(token: bytes) -> str:
            return "".join(printable[byte] for byte in token)

        ordered = sorted(self.ranks.items(), key=lambda item: item[1])
        # tiktoken joins every pair whose join has a rank; a merge list must therefore name all of
        # them.
        merges = [
            (show(token[:cut]), show(token[cut:]))
            for token, _ in ordered
            for cut in range(1, len(token))
            if token[:cut] in self.ranks and token[cut:] in self.ranks
        ]
        # As in tiktoken, a pre-token that is itself a token stays whole: merges are ignored there.
        ids = {show(token): rank for token, rank in ordered}
        # An added token gets the next id; a special one in a gap of the ranks (p50k_base has one)
        # needs its own.
        ids |= {token: i for token, i in self.special_tokens.items() if i < ordered[-1][1]}
        made = Tokenizer(models.BPE(ids, merges, ignore_merges=True))
        # The same class in Oniguruma's spelling, which writes code points in braces.
        space = re.sub(r"\\(?:u|x)([0-9a-f]+)", r"\\x{\1}", _SPACE)
        blocks = rf"[^{space}]{{{MAX_RUN_CHARACTERS}}}|[{space}]{{{MAX_RUN_CHARACTERS}}}"
        splits = [
            pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in (blocks, self.pattern)
        ]
        bytes_of = pre_tokenizers.ByteLevel(
            add_prefix_space=False, trim_offsets=False, use_regex=False
        )
        made.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_of])
        made.decoder = decoders.ByteLevel()
        special = sorted(self.special_tokens, key=self.special_tokens.__getitem__)
        made.add_special_tokens(
            [AddedToken(token, normalized=False, special=True) for token in special]
        )
        return made


def write_huggingface_config(folder: Path) -> None:
    """Write the `tokenizer_config.json` of a vocabulary whose special tokens are neither added nor
    recognized.
    """
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "unk_token": UNK,
        "cls_token": CLS,
        "sep_token": SEP,
        "mask_token": MASK,
        # transformers' value for no limit: nothing is truncated silently
        "model_max_length": int(1e30),
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "split_special_tokens": True,  # "[MASK]" in a user's text is text
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2) + "\n", encoding="utf-8"
    )


def is_byte_level(description: Mapping[str, object]) -> bool:
    """Whether the contents of a `tokenizer.json` are those that `AveyBTokenizer.save` writes: two
    cuts, then bytes.
    """
    cutting = description.get("pre_tokenizer")
    steps = cutting.get("pretokenizers") if isinstance(cutting, dict) else None
    kinds = (
        [step.get("type") for step in steps if isinstance(step, dict)]
        if isinstance(steps, list)
        else None
    )
    return kinds == ["Split", "Split", "ByteLevel"]


def write_limit(folder: Path, limit: int) -> None:
    """Let the saved tokenizer of a model folder cut texts at `limit` tokens, in transformers and
    its kin.
    """
    path = folder / "tokenizer_config.json"
    settings = read_object(path) | {"model_max_length": limit}
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def as_texts(texts: Iterable[str], what: str) -> list[str]:
    """Return texts as a list; one text is one, not its letters. `what` they are, for messages.

    Raises InputError: they cannot be listed, or one of them is not a text.
    """
    if isinstance(texts, str):
        return [texts]
    try:
        found = list(texts)
    except TypeError:
        raise InputError(f"{what} must be a list of texts, not {type(texts).__name__}") from None
    for i, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(f"{what}[{i}] must be a text, not {type(text).__name__}")
    return found


def as_pairs(documents: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (prefix, text) pairs as they come. Raises InputError: one is not a pair of texts."""
    try:
        pairs = iter(documents if not isinstance(documents, str) else [documents])
    except TypeError:
        raise InputError(
            f"documents must be (prefix, text) pairs, not {type(documents).__name__}"
        ) from None
    for i, pair in enumerate(pairs):
        if (
            isinstance(pair, str)
            or len(pair) != 2
            or not all(isinstance(text, str) for text in pair)
        ):
            raise InputError(
                f"documents[{i}] must be a pair of texts, (prefix, text), not {pair!r:.80}"
            )
        yield pair


def utf8(text: str) -> bytes:
    """Return a text's UTF-8 form.

    Raises InputError: it is not a string, or holds a lone surrogate.
    """
    if not isinstance(text, str):
        raise InputError(f"a text must be a str, this one is {type(text).__name__}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"character {error.start} of the text is the lone surrogate"
            f" U+{ord(text[error.start]):04X}, which has no UTF-8 form: decode the input with"
            ' errors="replace", or drop the character'
        ) from None


def _cut_long_runs(text: str) -> list[str]:
    """Cut the text so that a piece holds runs (of white space or of anything else) of at most
    `MAX_RUN_CHARACTERS` characters.
    """
    pieces: list[str] = []
    position = 0
    for run in _LONG_RUN.finditer(text):
        if run.start() > position:
            pieces.append(text[position : run.start()])
        pieces += [
            text[i : i + MAX_RUN_CHARACTERS]
            for i in range(run.start(), run.end(), MAX_RUN_CHARACTERS)
        ]
        position = run.end()
    if position < len(text) or not pieces:
        pieces.append(text[position:])
    return pieces


def printable_bytes() -> dict[int, str]:
    """Return GPT-2's table: each byte as one printable character, for vocabularies kept in JSON."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in kept}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(kept))
    return table


def _check_vocabulary(
    ranks: Mapping[bytes, int], special_tokens: Mapping[str, int], vocab_size: int, name: str
) -> None:
    missing = [token for token in SPECIAL_TOKENS if token not in special_tokens]
    if missing:
        raise ModelError(
            f"{name}: special tokens {', '.join(missing)} are missing; all of {SPECIAL_TOKENS} are"
            " needed"
        )
    bytes_missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if bytes_missing:
        raise ModelError(
            f"{name}: {len(bytes_missing)} of the 256 single bytes have no rank, the first is "
            f"0x{bytes_missing[0]:02X}; some texts could not be encoded"
        )
    ids = [*ranks.values(), *special_tokens.values()]
    if sorted(ids) != list(range(len(ids))):
        raise ModelError(
            f"{name}: the ids of {len(ids)} tokens must run from 0 to {len(ids) - 1} without a gap,"
            f" each once; these are {len(set(ids))} from {min(ids)} to {max(ids)}: the vocabulary"
            " file has lost or gained lines"
        )
    if vocab_size < len(ids):
        raise ModelError(
            f"{name}: vocab_size is {vocab_size}, there are {len(ids)} tokens; it must be at least"
            " as many"
        )
    if vocab_size > len(ids) + _MAX_PADDING_ROWS:
        raise ModelError(
            f"{name}: vocab_size is more than {_MAX_PADDING_ROWS} above the {len(ids)} tokens that"
            " there are; it counts the rows of the embedding"
        )


class _Settings(msgspec.Struct):
    """The fields of `aveyb_tokenizer.json` beside its format."""

    name: str
    pattern: str
    special_tokens: dict[str, int]
    vocab_size: int
    vocab_sha256: str


def _read_ranks(data: bytes, path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        token_text, _, rank_text = line.partition(b" ")
        try:
            token, rank = base64.b64decode(token_text, validate=True), int(rank_text)
        except (binascii.Error, ValueError) as error:
            raise ModelError(
                f"{path}, line {number}: expected '<base64> <rank>', got {line[:60]!r} ({error})"
            ) from error
        if not token or token in ranks:
            raise ModelError(
                f"{path}, line {number}: token {token!r} is empty or occurs twice; restore the"
                " folder"
            )
        ranks[token] = rank
    return ranks
