"""Token ids of the texts of `../aveyb-small-en/make_texts.py`, and which of them a step of training reads.

    texts.safetensors
        ids      uint16 `[T]`     of all texts, one after another, at most a split of each
        lengths  uint16 `[n]`
        kinds    uint8 `[n]`      numbers of KINDS
        pairs    int32 `[m, 2]`   (anchor, positive)

A step reads so many passages and pairs of each kind whatever their length, so that what it reads depends on its
number alone: a run that was stopped needs no other position.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

sys.path.insert(0, str(Path(__file__).parents[1] / "aveyb-small-en"))
from make_texts import SPLIT
from select_pairs import KEPT_ASIDE

from aveyb_retrieval.encoder.text.wordpiece import read_vocabulary
from aveyb_retrieval.errors import InputError
from aveyb_retrieval.files import hash_file, write_atomic
from aveyb_retrieval.training.texts import read_records

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = "texts.safetensors"
KINDS = ("passage", "positive", "question", "heading", "definition")
PER_STEP = {"passage": 20, "question": 16, "heading": 8, "definition": 16}  # passages, and pairs by their anchor's kind
SHORTEST = 24  # tokens of a passage that was cut at random


@dataclass(frozen=True)
class TokenIds:
    """All texts. ids: uint16 `[T]`; starts: int64 `[n + 1]`; kinds: uint8 `[n]`; pairs: int32 `[m, 2]`."""

    ids: np.ndarray
    starts: np.ndarray
    kinds: np.ndarray
    pairs: np.ndarray
    sha256: str

    @classmethod
    def load(cls, folder: Path) -> TokenIds:
        """Read what `main` wrote.

        Raises:
            InputError: the file is missing or cut short.
        """
        path = folder / FILE
        if not path.is_file():
            raise InputError(f"{path} is missing: make it with make_texts.py and token_ids.py")
        try:
            found = load_file(path)
        except SafetensorError as error:
            raise InputError(f"{path} is damaged ({error}): make it again with token_ids.py") from error
        starts = np.concatenate([[0], found["lengths"].astype(np.int64).cumsum()])
        return cls(found["ids"], starts, found["kinds"], found["pairs"], hash_file(path).sha256)

    def __len__(self) -> int:
        """Return n."""
        return len(self.kinds)

    def __getitem__(self, row: int) -> np.ndarray:
        """Return the ids of a text, uint16 `[t]`."""
        return self.ids[self.starts[row] : self.starts[row + 1]]

    def of_kind(self, kind: str) -> np.ndarray:
        """Return the texts of a kind, int64."""
        return np.flatnonzero(self.kinds == KINDS.index(kind))


class Order:
    """Which texts a step reads: endless passes over each kind, every pass in an order of its own.

    The last texts are kept aside. Of the passages every other one is cut at random: indexed passages are of any length.

    Args:
        texts: the data.
        seed: decides the order.
        kept_aside: how many texts at the end are never read.
        per_step: how many of each kind a step reads.

    Raises:
        InputError: there are none of a kind.
    """

    def __init__(
        self, texts: TokenIds, seed: int, kept_aside: int = KEPT_ASIDE, per_step: dict[str, int] | None = None
    ) -> None:
        """Find the texts and pairs of each kind."""
        self.texts, self.seed = texts, seed
        self.per_step = PER_STEP if per_step is None else per_step
        last = len(texts) - kept_aside
        pairs = texts.pairs[texts.pairs.max(1, initial=-1) < last]
        self.rows = {kind: pairs[texts.kinds[pairs[:, 0]] == KINDS.index(kind)] for kind in self.per_step}
        passages = texts.of_kind("passage")
        self.rows["passage"] = passages[passages < last][:, None]
        if empty := [kind for kind, rows in self.rows.items() if not len(rows)]:
            raise InputError(f"there are no texts of the kind {empty[0]}: make the texts of a larger share")
        self._passes: dict[str, tuple[int, np.ndarray]] = {}

    def __getitem__(self, step: int) -> list[np.ndarray]:
        """Return the ids of every text of a step, uint16 each; a question comes before its positive."""
        found = []
        generator = np.random.default_rng([self.seed, step])
        for number, (kind, count) in enumerate(self.per_step.items()):
            for place in range(step * count, (step + 1) * count):
                rows = self._row(number, kind, place)
                found += [self.texts[row] for row in rows.tolist()]
                if kind == "passage" and generator.random() < 0.5 and len(found[-1]) > SHORTEST:
                    length = generator.integers(SHORTEST, len(found[-1]))
                    first = generator.integers(0, len(found[-1]) - length + 1)
                    found[-1] = found[-1][first : first + length]
        return [ids for ids in found if len(ids)]

    def _row(self, number: int, kind: str, place: int) -> np.ndarray:
        rows = self.rows[kind]
        turn, index = divmod(place, len(rows))
        if self._passes.get(kind, (-1,))[0] != turn:
            self._passes[kind] = turn, np.random.default_rng([self.seed, number, turn]).permutation(len(rows))
        chosen: np.ndarray = rows[self._passes[kind][1][index]]
        return chosen


def groups(texts: Sequence[np.ndarray], tokens: int) -> list[list[int]]:
    """Return numbers of texts in groups of similar length, of at most so many tokens with their padding."""
    found: list[list[int]] = []
    for row in np.argsort([len(ids) for ids in texts], kind="stable").tolist():
        if not found or (len(found[-1]) + 1) * len(texts[row]) > tokens:
            found.append([])
        found[-1].append(row)
    return found


def main() -> None:
    """Parse the arguments and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="output folder of make_texts.py")
    parser.add_argument("--vocabulary", type=Path, required=True, help="folder of the teacher")
    args = parser.parse_args()
    tokenizer = read_vocabulary(args.vocabulary)
    rows = (record for _, record in read_records(args.texts / "texts.jsonl"))
    texts = [(tokenizer.encode_ids(row["text"])[:SPLIT].astype(np.uint16), KINDS.index(row["kind"])) for row in rows]
    pairs = [(pair["anchor"], pair["positive"]) for _, pair in read_records(args.texts / "pairs.jsonl")]
    arrays = {
        "ids": np.concatenate([ids for ids, _ in texts]),
        "lengths": np.array([len(ids) for ids, _ in texts], np.uint16),
        "kinds": np.array([kind for _, kind in texts], np.uint8),
        "pairs": np.array(pairs, np.int32).reshape(-1, 2),
    }
    write_atomic(args.texts / FILE, save(arrays))
    counts = {kind: sum(number == n for _, n in texts) for number, kind in enumerate(KINDS)}
    print(json.dumps({"texts": counts, "tokens": len(arrays["ids"]), "pairs": len(pairs)}))


if __name__ == "__main__":
    main()
