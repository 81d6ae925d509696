"""Transcripts: the cues of SRT and WebVTT."""

from __future__ import annotations

import html
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

    from aveyb_retrieval.documents.readers.limits import Limits

_TIMES = re.compile(r"\s*(?:(\d{1,4}):)?(\d{1,2}):(\d{2})[.,]\d{1,3}[ \t]+-->")
_VOICE = re.compile(r"<v(?:\.[^ \t<>]*)?[ \t]+([^<>]+)>")
_MARKS = re.compile(r"</?[A-Za-z][^<>]*>|<\d[\d:.]*>|</>|\{\\[^{}]*\}")
_ASIDE = re.compile(r"\s*(?:NOTE|STYLE|REGION)\b")
_SENTENCE_END = (".", "!", "?", "…", "。", "！", "？")  # stops of other scripts  # noqa: RUF001


def read_subtitles(data: bytes, limits: Limits) -> FileText:
    """Read the cues of a transcript; those of one sentence become one paragraph."""
    lines = clean(decode(data, limits.encoding)).split("\n")
    times = {number: found for number, line in enumerate(lines) if (found := _TIMES.match(line))}
    if not times:
        raise Unreadable("no cues with times, as SRT and WebVTT files have them")
    parts, is_vtt = Parts("time", limits), lines[0].startswith("WEBVTT")
    for cue, ((start, found), end) in enumerate(
        zip(times.items(), [*list(times)[1:], len(lines)], strict=True), 2
    ):
        label = f"{int(found[1] or 0)}:{found[2]:>02}:{found[3]}"
        said = _without_asides(lines[start + 1 : _end_of_cue(lines, start + 1, end, cue)])
        words = " ".join(_MARKS.sub("", _VOICE.sub(r"\1: ", " ".join(said))).split())
        if is_vtt or "&" in words:
            words = " ".join(html.unescape(words).split())
        if words:
            parts.add(words, label, end="\n" if words.endswith(_SENTENCE_END) else " ")
    return parts.text("")


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
