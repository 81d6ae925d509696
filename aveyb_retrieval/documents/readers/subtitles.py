"""Transcripts: the cues of SRT and WebVTT."""

from __future__ import annotations

import html
import itertools
import re
from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.encodings import decode
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Parts,
    Unreadable,
    clean,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.documents.readers.file_limits import Limits

_TIMES = re.compile(r"\s*(?:(\d{1,4}):)?(\d{1,2}):(\d{2})[.,]\d{1,3}[ \t]+-->")
_VOICE = re.compile(r"<v(?:\.[^ \t<>]*)?[ \t]+([^<>]+)>")
_MARKS = re.compile(r"</?[A-Za-z][^<>]*>|<\d[\d:.]*>|</>|\{\\[^{}]*\}")
_ASIDE = re.compile(r"\s*(?:NOTE|STYLE|REGION)\b")
_FEWEST_ROLLING, _ROLLING_SHARE = 3, 0.5  # cues with text, and of these the share that repeats
_SENTENCE_END = (".", "!", "?", "…", "。", "！", "？")  # stops of other scripts  # noqa: RUF001


def read_subtitles(data: bytes, limits: Limits) -> FileText:
    """Read the cues of a transcript; those of one sentence become one paragraph."""
    lines = clean(decode(data, limits.encoding)).split("\n")
    times = {number: match for number, line in enumerate(lines) if (match := _TIMES.match(line))}
    if not times:
        raise Unreadable("no cues with times, as SRT and WebVTT files have them")
    parts, is_vtt = Parts("time", limits), lines[0].startswith("WEBVTT")
    for label, cue_lines in _without_repetition(list(_cues(lines, times, is_vtt))):
        words = " ".join(cue_lines)
        if words:
            parts.add(words, label, end="\n" if words.endswith(_SENTENCE_END) else " ")
    return parts.text("")


def _cues(
    lines: list[str], times: dict[int, re.Match[str]], is_vtt: bool
) -> Iterator[tuple[str, list[str]]]:
    """The time of each cue, and its lines without marks."""
    ends = [*list(times)[1:], len(lines)]
    for cue, ((start, time), end) in enumerate(zip(times.items(), ends, strict=True), 2):
        label = f"{int(time[1] or 0)}:{time[2]:>02}:{time[3]}"
        said = _without_asides(lines[start + 1 : _end_of_cue(lines, start + 1, end, cue)])
        words = [_MARKS.sub("", _VOICE.sub(r"\1: ", line)) for line in said]
        if is_vtt or any("&" in line for line in words):
            words = [html.unescape(line) for line in words]
        yield label, [line for line in (" ".join(line.split()) for line in words) if line]


def _without_repetition(cues: list[tuple[str, list[str]]]) -> Iterator[tuple[str, list[str]]]:
    """Cues without the lines that the cue before has shown, where captions roll.

    Automatic captions show each line two or three times: as it is spoken, alone, and above the next
    one. A file is of this kind if most of its cues begin with the last line of the cue before.
    """
    filled = [lines for _, lines in cues if lines]
    rolling = sum(lines[0] == before[-1] for before, lines in itertools.pairwise(filled))
    if len(filled) < _FEWEST_ROLLING or rolling < _ROLLING_SHARE * (len(filled) - 1):
        yield from cues
        return
    before: list[str] = []
    for label, lines in cues:
        repeated = next((n for n in range(len(lines), 0, -1) if before[-n:] == lines[:n]), 0)
        yield label, lines[repeated:]
        before = lines or before


def _end_of_cue(lines: list[str], start: int, end: int, following: int) -> int:
    """Where a cue ends before the times in line `end`: in front of the number or the name of the
    following cue.
    """
    if end == len(lines):
        return end
    name = next((number for number in range(end - 1, start - 1, -1) if lines[number].strip()), None)
    if name is None:
        return end
    counts = lines[name].strip() == str(following) or (
        lines[name].strip().isdigit() and name == end - 1
    )
    return (
        name
        if counts or (name == end - 1 and name > start and not lines[name - 1].strip())
        else end
    )


def _without_asides(lines: list[str]) -> Iterator[str]:
    """Lines without the blocks of notes and styles that follow a cue."""
    aside = False
    for number, line in enumerate(lines):
        if not line.strip():
            aside = False
        elif number and not lines[number - 1].strip() and _ASIDE.match(line):
            aside = True
        elif not aside:
            yield line
