"""Files that are pictures of text, of one page or many: TIFF, JPEG, PNG and their kind."""

from __future__ import annotations

import io
import math
import warnings
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Parts,
    Unreadable,
    Unrecognized,
    clean,
    first_few,
    one_line,
)
from aveyb_retrieval.documents.readers.ocr import (
    MAX_OCR_PIXELS,
    most_pictures,
    read_pictures,
    why_unavailable,
)
from aveyb_retrieval.documents.readers.ocr_text import PictureText, ocr_metadata
from aveyb_retrieval.documents.readers.pdf_text import join_words, words_with_hyphen
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from PIL.Image import Image

    from aveyb_retrieval.documents.readers.file_limits import Limits

MIN_PICTURE_BYTES = 200  # of one in another file that may show words
_FORMATS = ("TIFF", "PNG", "JPEG", "JPEG2000", "BMP", "GIF", "WEBP", "PPM")
_PAGED = "TIFF"  # the pictures of other files are those of a film
_MIN_LONG, _MIN_SHORT = 400, 200  # pixels of the sides: smaller ones are logos
_SMALL_PIXELS = 1000  # pixels of the longer side: smaller type is read better enlarged
_SQUARE_RATIO = (
    1.2  # of the dots per inch in both directions, between which a picture is as it looks
)
_WHITE = (255, 255, 255)


def read_picture_file(data: bytes, limits: Limits) -> FileText:
    """Read the words of a picture, of a TIFF page by page.

    Of one that is small, or shows no words, the text is empty. Raises Unreadable: it is damaged or
    too large; Unrecognized: nothing of it can be read now.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that are read, and of damage that is read over
        return _read(data, limits)


def _read(data: bytes, limits: Limits) -> FileText:
    picture = _open(data)
    count = _count_pages(picture)
    most = most_pictures(len(data))
    if count > most:
        raise Unreadable(
            f"{count:,} pages in {len(data):,} bytes; of a file of that size at most"
            f" {most:,} are read"
        )
    if count == 1 and _is_small(picture):
        return FileText("", "", warning="a small picture, not read")
    pages: list[Callable[[], Image]] = [partial(_page, picture, n) for n in range(count)]
    outcomes = list(read_pictures(pages, count, limits))
    return _text(outcomes, limits)


def _text(outcomes: list[PictureText | Unreadable], limits: Limits) -> FileText:
    parts = Parts("page", limits)
    failed: dict[int, Unreadable] = {}
    certainties: dict[int, float] = {}
    for number, outcome in enumerate(outcomes, start=1):
        text = ""
        if isinstance(outcome, Unreadable):
            failed[number] = outcome
        elif outcome.text:
            text = picture_words(outcome)
            certainties[number] = outcome.certainty
        parts.add(text)
    may_recognize_more = any(isinstance(reason, Unrecognized) for reason in failed.values())
    if len(failed) == len(outcomes):
        first = next(iter(failed.values()))
        raise Unrecognized(str(first)) if may_recognize_more else first
    wordless = "" if certainties or failed else "a picture without words"
    return parts.text(
        "",
        _unread(failed, len(outcomes)) or wordless,
        ocr_metadata(certainties),
        is_incomplete=bool(failed),
        may_recognize_more=may_recognize_more,
    )


def picture_words(outcome: PictureText) -> str:
    """Return what is read of a picture, with words that the end of a line divides as one."""
    return clean(join_words(outcome.text, words_with_hyphen(outcome.text)))


def read_inner_pictures(
    contents: Mapping[str, bytes], size: int, limits: Limits
) -> dict[str, PictureText | Unreadable]:
    """Read the pictures in a file of `size` bytes, by their names, or say why one is not read.

    Small ones are left out. Of a TIFF the first page is read.
    """
    why = why_unavailable(limits)
    if why and find_spec("PIL") is None:
        return dict.fromkeys(contents, Unrecognized(why))
    outcomes: dict[str, PictureText | Unreadable] = {}
    pictures: dict[str, Image] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in contents.items():
            try:
                picture = _open(data)
            except Unreadable as reason:
                outcomes[name] = reason
                continue
            if not _is_small(picture):
                pictures[name] = picture
        if why:
            return outcomes | dict.fromkeys(pictures, Unrecognized(why))
        most = most_pictures(size)
        beyond = Unreadable(f"a file of {size:,} bytes shows more than {most:,} pictures")
        outcomes |= dict.fromkeys([*pictures][most:], beyond)
        names = [*pictures][:most]
        pages = [partial(_page, pictures[name], 0) for name in names]
        if pages:
            outcomes |= zip(names, read_pictures(pages, len(pages), limits), strict=True)
    return outcomes


def _unread(failed: dict[int, Unreadable], count: int) -> str:
    """Say which pages are not read, and why the first is not; "" where all are."""
    if not failed:
        return ""
    reason = next(iter(failed.values()))
    return f"{len(failed):,} of {plural(count, 'page')} not read ({reason}): {first_few([*failed])}"


def _open(data: bytes) -> Image:
    import PIL.Image

    try:
        return PIL.Image.open(io.BytesIO(data), formats=_FORMATS)
    except PIL.Image.DecompressionBombError as error:
        raise Unreadable(f"too large a picture ({one_line(str(error))})") from None
    except PIL.UnidentifiedImageError:
        raise Unreadable("damaged, or not a picture of its kind") from None
    except Exception as error:  # of a decoder that a damaged file has confused
        raise _damaged(error) from None


def _damaged(error: Exception) -> Unreadable:
    return Unreadable(f"damaged ({one_line(str(error)) or type(error).__name__})")


def _count_pages(picture: Image) -> int:
    if picture.format != _PAGED:
        return 1
    try:
        return int(getattr(picture, "n_frames", 1))
    except Exception as error:  # of a decoder that a damaged file has confused
        raise _damaged(error) from None


def _is_small(picture: Image) -> bool:
    return max(picture.size) < _MIN_LONG or min(picture.size) < _MIN_SHORT


def _page(picture: Image, number: int) -> Image:
    """Return a page as OCR reads it.

    Raises Unreadable: it is damaged or too large.
    """
    import PIL.Image

    most = 2 * (PIL.Image.MAX_IMAGE_PIXELS or 0)
    try:
        picture.seek(number)
        width, height = picture.size
        if most and width * height > most:
            raise Unreadable(f"a page of {width:,} x {height:,} pixels; at most {most:,} are read")
        return _upright_and_grey(picture)
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # of a decoder that a damaged file has confused
        raise _damaged(error) from None


def _upright_and_grey(picture: Image) -> Image:
    """Return a copy as its file says that it lies, in shades of grey, of a size that is read."""
    from PIL import ImageOps

    dots = picture.info.get("dpi")
    grey = _grey(ImageOps.exif_transpose(picture))
    width, height = grey.size
    if grey.size == picture.size:
        width, height = _square(width, height, dots)
    scale = min(1.0, math.sqrt(MAX_OCR_PIXELS / max(1, width * height)))
    if max(width, height) < _SMALL_PIXELS:
        scale = 2.0
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return grey if size == grey.size else grey.resize(size)


def _square(width: int, height: int, dots: object) -> tuple[int, int]:
    """The size of a picture of square dots: a fax has half as many down as across."""
    if not isinstance(dots, tuple) or len(dots) != 2:
        return width, height
    across, down = float(dots[0]), float(dots[1])
    if min(across, down) <= 1:
        return width, height
    if across > _SQUARE_RATIO * down:
        return width, min(2 * height, round(height * across / down))
    if down > _SQUARE_RATIO * across:
        return min(2 * width, round(width * down / across)), height
    return width, height


def _grey(picture: Image) -> Image:
    import PIL.Image

    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        clear = picture.convert("RGBA")
        ground = PIL.Image.new("RGB", clear.size, _WHITE)
        ground.paste(clear, mask=clear.getchannel("A"))
        return ground.convert("L")
    if picture.mode.startswith(("I", "F")):  # more than 8 bits for each dot
        dots = np.asarray(picture, np.float32)
        span = max(float(np.ptp(dots)), 1e-9)
        return PIL.Image.fromarray(((dots - dots.min()) * (255 / span)).astype(np.uint8))
    return picture.convert("L")
