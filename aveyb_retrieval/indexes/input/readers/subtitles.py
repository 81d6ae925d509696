"""SRT and WebVTT: what is said, each cue a page whose label is the time at which it begins."""

from __future__ import annotations

import re

from aveyb_retrieval.indexes.input.readers.base import FileText, Parts, Unreadable, clean, decode

_TIMES = re.compile(r"\s*(?:(\d{1,4}):)?(\d{1,2}):(\d{2})[.,]\d{1,3}[ \t]+-->")
_MARKS = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")
_ASIDE = re.compile(r"\s*(?:NOTE|STYLE|REGION)\b")
_SENTENCE_END = (".", "!", "?", "…", "。", "！", "？")  # noqa: RUF001  # stops of other scripts


def read_subtitles(data: bytes, encoding: str | None, longest: int) -> FileText:
    """Read the cues of a transcript; those of one sentence become one paragraph.

    Raises:
        Unreadable: it has none.
    """
    parts, label = Parts("time", longest), ""
    for block in re.split(r"\n\n+", clean(decode(data, encoding))):
        lines = block.split("\n")
        at = next((number for number, line in enumerate(lines[:2]) if _TIMES.match(line)), None)
        if at is not None and (found := _TIMES.match(lines[at])):
            label = f"{int(found[1] or 0)}:{found[2]:>02}:{found[3]}"
        elif not label or _ASIDE.match(block):
            continue  # the head of the file, a note, a style
        # else more of the cue before, behind a blank line
        said = " ".join(_MARKS.sub("", " ".join(lines if at is None else lines[at + 1 :])).split())
        if said:
            parts.add(said, label, end="\n" if said.endswith(_SENTENCE_END) else " ")
    if not parts:
        raise Unreadable("no cues with times, as SRT and WebVTT files have them")
    return parts.text("")
