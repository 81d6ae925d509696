"""Needles for a language model: a number hidden in a long text and asked for at its end.

`passkey` and `niah-1` hide it in a few sentences that repeat, `niah-2` in real texts; the first asks for "the pass
key", the other two for the number of a place (Avey's S-NIAH-1 and S-NIAH-2, after RULER: Hsieh et al., 2024). The
sentences are our own, so figures compare models with each other, not with published ones.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import torch
from sentences import sentences_of

from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aveyb_retrieval.encoder.network.avey import AveyForCausalLM
    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer

TASKS = ("passkey", "niah-1", "niah-2")
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
DEPTHS = (10, 30, 50, 70, 90)

_OPENING = "A number is hidden in the text below. It will be asked for at the end.\n"
_NOISE = ("The meadow is quiet.", " A river runs by.", " Clouds pass over the hills.", " Far off, a bell rings.")
_PLACES = ("Ashby", "Brindle", "Corven", "Dunmore", "Elsham", "Fairlow", "Garsdale", "Hexley")
_DIGITS = 7


@dataclass(frozen=True)
class Needle:
    """A prompt and the number that should follow it."""

    ids: np.ndarray
    answer: str


@dataclass(frozen=True)
class Cell:
    """The result of one length and depth.

    Attributes:
        task: one of `TASKS`.
        length: tokens of the prompt.
        depth: where the needle is, in percent of the text.
        found: share of the seeds whose answer holds the number.
        first_token_seconds: median time from the prompt to the first token.
    """

    task: str
    length: int
    depth: int
    found: float
    first_token_seconds: float


def make_needle(
    task: str, tokenizer: AveyBTokenizer, length: int, depth: int, seed: int, haystack: Sequence[str] = ()
) -> Needle:
    """Make a prompt of exactly `length` tokens.

    Args:
        task: one of `TASKS`.
        tokenizer: of the model.
        length: tokens of the prompt.
        depth: 0 (needle at the beginning) to 100 (right before the question).
        seed: decides the number, the name and where real texts begin.
        haystack: texts for "niah-2".

    Raises:
        ConfigError: an unknown task, a depth outside of 0 to 100, or "niah-2" without texts.
        InputError: the length leaves no room for the needle and its question.
    """
    if task not in TASKS or not 0 <= depth <= 100:
        raise ConfigError(f"task is {task!r}, depth {depth}; choose one of {', '.join(TASKS)}, and 0 to 100")
    if task == "niah-2" and not haystack:
        raise ConfigError("niah-2 hides the number in real texts; give some with --haystack")
    random = np.random.default_rng([seed, length, depth])
    answer = "".join(map(str, random.integers(1, 10, _DIGITS)))
    thing = "the pass key" if task == "passkey" else f"the secret number of {random.choice(_PLACES)}"
    needle = tokenizer.encode_ids(f" {thing[0].upper()}{thing[1:]} is {answer}.")
    question = tokenizer.encode_ids(f"\nWhat is {thing}? {thing[0].upper()}{thing[1:]} is")
    opening = tokenizer.encode_ids(_OPENING)
    room = length - len(opening) - len(needle) - len(question)
    if room < 0:
        raise InputError(f"length {length}: {task} needs {length - room} tokens for its needle and question")
    sentences = (f" {each}" for each in sentences_of(haystack, random)) if task == "niah-2" else cycle(_NOISE)
    pieces = _pieces(tokenizer, room, sentences)
    ends = np.cumsum([0, *map(len, pieces)])
    place = int(np.abs(ends - depth / 100 * room).argmin())
    return Needle(
        np.concatenate([opening, *pieces[:place], needle, *pieces[place:], question]).astype(np.int64), answer
    )


def run_needles(
    model: AveyForCausalLM,
    tokenizer: AveyBTokenizer,
    *,
    tasks: Sequence[str] = TASKS,
    lengths: Sequence[int] = LENGTHS,
    depths: Sequence[int] = DEPTHS,
    seeds: int = 5,
    haystack: Sequence[str] = (),
    progress: Callable[[Cell], None] = lambda cell: None,
) -> list[Cell]:
    """Ask for needles of every task, length and depth, greedily and with caches.

    Args:
        model: the language model.
        tokenizer: of the model.
        tasks: of `TASKS`.
        lengths: tokens of the prompts.
        depths: in percent.
        seeds: prompts of each cell.
        haystack: texts for "niah-2".
        progress: called with each cell that is done.
    """
    cells = []
    for task in tasks:
        for length in lengths:
            for depth in depths:
                found, seconds = [], []
                for seed in range(seeds):
                    needle = make_needle(task, tokenizer, length, depth, seed, haystack)
                    said, first = answer_greedily(model, tokenizer, needle.ids, tokens=2 * _DIGITS)
                    found.append(needle.answer in said)
                    seconds.append(first)
                cells.append(Cell(task, length, depth, float(np.mean(found)), float(np.median(seconds))))
                progress(cells[-1])
    return cells


@torch.inference_mode()
def answer_greedily(
    model: AveyForCausalLM, tokenizer: AveyBTokenizer, prompt: np.ndarray, *, tokens: int
) -> tuple[str, float]:
    """Return the text of the `tokens` likeliest tokens after a prompt, and the seconds until the first of them."""
    start = time.perf_counter()
    out = model(torch.from_numpy(prompt)[None].to(model.device), use_cache=True)
    said = [int(out.logits[0, -1].argmax())]
    first = time.perf_counter() - start
    while len(said) < tokens:
        last = torch.tensor([[said[-1]]], device=model.device)
        out = model(last, past_key_values=out.past_key_values, use_cache=True)
        said.append(int(out.logits[0, -1].argmax()))
    ids = {*tokenizer.ranks.values(), *tokenizer.special_tokens.values()}  # the embedding may have rows beyond them
    return tokenizer.decode([token for token in said if token in ids]), first


def _pieces(tokenizer: AveyBTokenizer, room: int, sentences: Iterator[str]) -> list[np.ndarray]:
    """Sentences as ids int32, the last one cut, `room` tokens in all."""
    pieces: list[np.ndarray] = []
    while room > 0:
        ids = tokenizer.encode_ids(next(sentences))[:room]
        pieces.append(ids)
        room -= len(ids)
    return pieces
