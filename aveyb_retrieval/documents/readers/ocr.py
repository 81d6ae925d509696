"""Words of pictures of text, by Tesseract: upright, on their side and on their head."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.documents.readers.filetext import Unreadable, Unrecognized, one_line
from aveyb_retrieval.documents.readers.ocr_text import (
    TABLE_COLUMNS,
    PictureText,
    PictureWord,
    picture_text,
)
from aveyb_retrieval.errors import shortened
from aveyb_retrieval.system import usable_processors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from PIL.Image import Image

    from aveyb_retrieval.documents.readers.file_limits import Limits

MAX_OCR_PIXELS = 25_000_000  # of a picture: a larger one is read smaller
_BYTES_PER_PICTURE = 500  # of a file: one that shows more pictures shows the same ones again
_MIN_PICTURES = 100  # that any file may show
_UPRIGHT_PERCENT = 75.0  # percent of certainty: a page that is read so stands upright
_MIN_UPRIGHT_LETTERS = 12  # too few to tell how a page lies
_ANSWER_SECONDS = 20  # to say which languages there are
_LANGUAGE = re.compile(r"[A-Za-z_]+(?:/[A-Za-z_]+)?")
_WATCH_SECONDS = 5.0  # between two signs of life
_QUARTER_TURNS = (90, 180, 270)
_LONGEST_REPORT = 120  # characters of what Tesseract says


class OcrConditions(NamedTuple):
    """What decides which pictures are read: languages, "" without Tesseract, and seconds."""

    languages: str
    seconds: int

    def may_read_more_than(self, before: OcrConditions) -> bool:
        """Return whether a picture that was not read before may be read now."""
        known, now = set(before.languages.split("+")), set(self.languages.split("+")) - {""}
        return bool(now - known) or (bool(now) and self.seconds > before.seconds)


def installed_languages(*, remembered: bool = False) -> list[str] | None:
    """Return the languages that Tesseract has data of, also "osd"; none without the program, None
    without pytesseract.

    To ask a program takes as long as a small picture, and longer if it hangs: `remembered` are
    those that it named when this process asked first.
    """
    if find_spec("pytesseract") is None:
        return None
    ask = _first_answer if remembered else _ask_languages
    return ask(_program())


def _program() -> str:
    """The path of Tesseract; "" where it is not installed."""
    import pytesseract

    return shutil.which(pytesseract.pytesseract.tesseract_cmd) or ""


def _ask_languages(program: str) -> list[str]:
    try:
        # pytesseract would wait for an answer for ever
        answer = subprocess.run(  # noqa: S603
            [program, "--list-langs"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    # versions differ in which of the two they print to
    lines = (answer.stdout + answer.stderr).decode(errors="replace").splitlines()
    return sorted(filter(_LANGUAGE.fullmatch, map(str.strip, lines)))


_first_answer = cache(_ask_languages)


def ocr_conditions(limits: Limits) -> OcrConditions:
    """Return what decides now which pictures are read."""
    return OcrConditions(_chosen(limits, installed_languages()), limits.ocr_seconds)


def _chosen(limits: Limits, installed: list[str] | None) -> str:
    """The languages that pictures are read in; "": none can be read."""
    known = set(installed or ()) - {"osd"}
    if limits.ocr_languages is None:
        return "+".join(sorted(known))
    return limits.ocr_languages if known.issuperset(limits.ocr_languages.split("+")) else ""


def why_no_ocr(limits: Limits, installed: list[str] | None) -> str:
    """Return what would give the words of pictures; "" where what is installed does."""
    if installed is None:
        return "make it searchable by OCR, or install the extra [ocr] and tesseract"
    if not set(installed) - {"osd"}:
        return "OCR needs tesseract and its data, Debian: tesseract-ocr"
    if not _chosen(limits, installed):
        missing = sorted({*(limits.ocr_languages or "").split("+")} - {*installed})
        return f"tesseract has no data of {'+'.join(missing)!r} (--ocr-languages, ocr_languages)"
    return ""


def why_unavailable(limits: Limits) -> str:
    """Return what this process would need to read pictures; "" where it can."""
    return why_no_ocr(limits, installed_languages(remembered=True))


def most_pictures(size: int) -> int:
    """Return how many pictures a file of so many bytes may show."""
    return max(_MIN_PICTURES, size // _BYTES_PER_PICTURE)


def read_pictures(
    pictures: Iterable[Callable[[], Image]], total: int, limits: Limits
) -> Iterator[PictureText | Unreadable]:
    """Read pictures on all processors: the words of each, in their order, or why there are none.

    A picture is made by the calling thread when its turn comes; what making one raises as
    Unreadable is the reason of that one alone.
    """
    workers, done = usable_processors(), 0
    installed = installed_languages(remembered=True)
    waiting: deque[Future[PictureText | Unreadable]] = deque()
    limits.watch(0, total)
    with ThreadPoolExecutor(workers) as pool:
        for make in pictures:
            waiting.append(_submit(pool, make, limits, installed))
            if len(waiting) > workers:
                yield _outcome(waiting.popleft(), done, total, limits)
                done += 1
        while waiting:
            yield _outcome(waiting.popleft(), done, total, limits)
            done += 1
    limits.watch(done, total)


def _submit(
    pool: ThreadPoolExecutor,
    make: Callable[[], Image],
    limits: Limits,
    installed: list[str] | None,
) -> Future[PictureText | Unreadable]:
    try:
        picture = make()
    except Unreadable as reason:
        failed: Future[PictureText | Unreadable] = Future()
        failed.set_result(reason)
        return failed
    return pool.submit(_read_or_reason, picture, limits, installed)


def _outcome(
    future: Future[PictureText | Unreadable], done: int, total: int, limits: Limits
) -> PictureText | Unreadable:
    limits.watch(done, total)
    while not wait([future], _WATCH_SECONDS).done:
        limits.watch(done, total)
    return future.result()


def _read_or_reason(
    picture: Image, limits: Limits, installed: list[str] | None
) -> PictureText | Unreadable:
    try:
        return _read_picture(picture, limits, installed)
    except Unrecognized as reason:
        return reason


def read_picture(picture: Image, limits: Limits) -> PictureText:
    """Return the words of a picture, turned as they are read.

    Raises Unrecognized: it takes too long, Tesseract fails, or is not installed.
    """
    return _read_picture(picture, limits, installed_languages(remembered=True))


def _read_picture(picture: Image, limits: Limits, installed: list[str] | None) -> PictureText:
    if reason := why_no_ocr(limits, installed):
        raise Unrecognized(reason)
    if _is_blank(picture):
        return picture_text([])
    return picture_text(_Reader(picture, limits, installed or []).words())


def _is_blank(picture: Image) -> bool:
    extremes = picture.getextrema()
    return extremes[0] == extremes[1]


class _Reader:
    """One picture while its words are read, within its seconds."""

    def __init__(self, picture: Image, limits: Limits, installed: list[str]) -> None:
        self._picture = picture
        self._limits = limits
        self._end = time.monotonic() + limits.ocr_seconds
        self._languages = _chosen(limits, installed)
        self._sees_turns = "osd" in installed

    def words(self) -> list[PictureWord]:
        """Return the words of the picture in the turn that reads best."""
        words = self._words(0)
        letters = sum(word.letters for word in words)
        if letters < _MIN_UPRIGHT_LETTERS or picture_text(words).certainty >= _UPRIGHT_PERCENT:
            return words
        for turn in self._turns():
            turned = self._words(turn)
            if _sure_letters(turned) > _sure_letters(words):
                words = turned
        return words

    def _turns(self) -> tuple[int, ...]:
        """How the picture may have to be turned, in degrees clockwise."""
        import pytesseract

        if not self._sees_turns:
            return _QUARTER_TURNS
        try:
            orientation = self._run(
                pytesseract.image_to_osd,
                self._picture,
                output_type=pytesseract.Output.DICT,
            )
        except Unrecognized:
            self._seconds_left()  # else too little text to see how it lies
            return _QUARTER_TURNS
        turn = orientation["rotate"]
        return (turn,) if turn in _QUARTER_TURNS else ()

    def _words(self, turn: int) -> list[PictureWord]:
        import pytesseract

        table = self._run(
            pytesseract.image_to_data,
            self._picture.rotate(-turn, expand=True) if turn else self._picture,
            lang=self._languages,
            output_type=pytesseract.Output.DICT,
        )
        columns = (table.get(name, ()) for name in TABLE_COLUMNS)
        try:
            return [
                PictureWord.of_row(row, turn, self._picture.size)
                for row in zip(*columns, strict=True)
                if str(row[0]).strip()
            ]
        except ValueError as error:
            raise _no_table(error) from None

    def _run(self, function: Callable[..., Any], picture: Image, **options: Any) -> Any:
        import pytesseract

        picture.format = "BMP"  # how it is handed over: packing a PNG would take a second
        try:
            return function(picture, timeout=self._seconds_left(), **options)
        except pytesseract.TesseractError as error:
            reason = shortened(one_line(str(error.message)), _LONGEST_REPORT)
            raise Unrecognized(f"tesseract failed: {reason or error.status}") from None
        except OSError as error:
            raise Unrecognized(f"tesseract cannot be run ({one_line(str(error))})") from None
        except RuntimeError:  # how pytesseract says that the time is over
            raise self._too_slow() from None
        except (ValueError, KeyError, UnicodeDecodeError) as error:
            raise _no_table(error) from None

    def _seconds_left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise self._too_slow()
        return left

    def _too_slow(self) -> Unrecognized:
        return Unrecognized(f"took more than {self._limits.ocr_seconds} s (--ocr-seconds)")


def _no_table(error: Exception) -> Unrecognized:
    return Unrecognized(f"tesseract gave no table of words ({error})")


def _sure_letters(words: list[PictureWord]) -> int:
    return sum(word.letters for word in words if word.is_sure)
