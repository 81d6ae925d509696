"""XLM-R's tokenizer as a `tokenizer.json`, from the vocabulary in the weights' file.

A character outside of all pieces is one <unk>; XLM-R makes one of neighbours. Characters are
replaced one by one and nothing is composed, so a text is to be in NFC, which the normalizer does.
"""

from __future__ import annotations

import struct
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from aveyb_retrieval.encoder.languages.weights import Pieces

MASK = "<mask>"  # the last piece, which has a score of 0 as <s> has
SPACE = "▁"


def unigram_tokenizer(pieces: Pieces) -> Tokenizer:
    """Return XLM-R's tokenizer with these pieces."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    vocabulary = list(zip(pieces.texts, pieces.scores, strict=True))
    tokenizer = Tokenizer(models.Unigram(vocabulary, pieces.unknown))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Precompiled(character_table(pieces.replacements)),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    special = [pieces.bos, pieces.eos, pieces.pad, pieces.unknown, pieces.texts.index(MASK)]
    ordinary = (text for number, text in enumerate(pieces.texts) if number not in special)
    known = set().union(*ordinary)
    unknown_alone = pre_tokenizers.Split(Regex(f"[^{character_class(known)}]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(SPACE, "first"), unknown_alone]
    )
    tokenizer.decoder = decoders.Metaspace(SPACE, "first")
    bos, eos = pieces.texts[pieces.bos], pieces.texts[pieces.eos]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} {eos} $B {eos}",
        special_tokens=[(bos, pieces.bos), (eos, pieces.eos)],
    )
    tokenizer.add_special_tokens(
        [AddedToken(pieces.texts[number], special=True, normalized=False) for number in special]
    )
    return tokenizer


def character_table(replacements: dict[str, str]) -> bytes:
    """Return the replacements in the form of SentencePiece's precompiled_charsmap."""
    texts, places = b"", {}
    for replacement in dict.fromkeys(replacements.values()):
        places[replacement] = len(texts)
        texts += replacement.encode() + b"\0"
    keys = {old.encode(): places[new] for old, new in replacements.items()}
    trie = double_array(keys).tobytes()
    return struct.pack("<I", len(trie)) + trie + texts


def double_array(values: dict[bytes, int]) -> np.ndarray:
    """Return a trie of keys without the byte 0 in the form of Darts-clone, uint32 units.

    A node at place p with the base b has its child of byte c at q = b ^ c. The unit there holds c
    in bits 0 to 7, whether a key ends in bit 8, and q ^ (the base of q) from bit 10. Where a key
    ends, the unit at the base itself holds the value with bit 31. No two nodes share a base, so a
    unit of byte c belongs to one node.
    """
    root: dict[int, Any] = {}
    for key, value in values.items():
        node = root
        for byte in key:
            node = node.setdefault(byte, {})
        node[0] = value
    units: dict[int, int] = {0: 0}
    bases: set[int] = set()
    first_free = 1
    queue = [(0, root)]
    for place, node in queue:
        labels = sorted(node)
        while first_free in units:
            first_free += 1
        base = _free_base(labels, first_free, units, bases)
        bases.add(base)
        units[place] |= (place ^ base) << 10 | (0 in node) << 8
        for label in labels:
            units[base ^ label] = label if label else 1 << 31 | node[0]
            if label:
                queue.append((base ^ label, node[label]))
    array = np.zeros((max(units) | 255) + 1, "<u4")  # a reader looks at base ^ c for any byte c
    array[list(units)] = list(units.values())
    return array


def _free_base(labels: list[int], first: int, units: dict[int, int], bases: set[int]) -> int:
    """Return the first base at which no unit of the labels is taken."""
    place = first
    while True:
        base = place ^ labels[0]
        if base not in bases and all(base ^ label not in units for label in labels):
            return base
        place += 1


def character_class(characters: set[str]) -> str:
    """Return what stands between the brackets of a pattern that matches these characters."""
    numbered = enumerate(sorted(map(ord, characters)))
    runs = []
    for _, run in groupby(numbered, lambda pair: pair[1] - pair[0]):
        codes = [code for _, code in run]
        runs.append(rf"\x{{{codes[0]:X}}}-\x{{{codes[-1]:X}}}")
    return "".join(runs)
