"""A document as it enters the index, its pages and edits, and the checks that every input format
shares.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from pathlib import PurePath
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import UUID

import numpy as np

from aveyb_retrieval.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from aveyb_retrieval.indexes.types import EncodedRow

MAX_PAGES = 1 << 20
UNITS = ("page", "slide", "sheet", "line", "file", "time")
MAX_LABEL_CHARACTERS = 200  # characters; a label is "iv" or "A-12"


class Page(NamedTuple):
    """One page: its number, counted from 1, what the document itself calls it ("iv"), and what it
    is.
    """

    number: int
    label: str
    unit: str = "page"

    def __str__(self) -> str:
        return f"{self.unit} {self.label}"


@dataclass(frozen=True)
class Pages:
    """The pages of one document, of which not every list of numbers is one (ValueError).

    Attributes:
        starts: The character at which each page begins, ascending from 0; an empty page begins with
            the next one.
        labels: What the document calls each page; empty where it has no labels of its own.
        unit: One of `UNITS`: "file" is one of an archive or mail, and the labels of "time" say when
            something is said.
    """

    starts: tuple[int, ...]
    labels: tuple[str, ...] = ()
    unit: str = "page"

    def __post_init__(self) -> None:
        are_numbers = all(type(start) is int and 0 <= start < 1 << 40 for start in self.starts)
        if not are_numbers or not 1 <= len(self.starts) <= MAX_PAGES or self.starts[0] != 0:
            raise ValueError("pages that do not begin at character 0")
        if any(a > b for a, b in pairwise(self.starts)):
            raise ValueError("pages out of order")
        if self.labels and len(self.labels) != len(self.starts):
            raise ValueError(f"{len(self.labels)} labels for {len(self.starts)} pages")
        if not all(
            isinstance(label, str) and len(label) <= MAX_LABEL_CHARACTERS for label in self.labels
        ):
            raise ValueError("a page label that is not a short text")
        if self.unit not in UNITS:
            raise ValueError(f"pages of an unknown unit {self.unit!r}")

    def at(self, character: int) -> Page:
        """Return the page that holds a character of the text."""
        number = bisect_right(self.starts, character)
        return Page(number, self.labels[number - 1] if self.labels else str(number), self.unit)

    def range(self, start: int, stop: int) -> tuple[Page, Page]:
        """Return the pages that hold the first and the last of the characters `[start, stop)`."""
        return self.at(start), self.at(max(start, stop - 1))

    def to_dict(self) -> dict[str, object]:
        """Return what `from_json` reads, as JSON can hold it; a unit is named where it is not
        "page".
        """
        named = {} if self.unit == "page" else {"unit": self.unit}
        return {"starts": list(self.starts), "labels": list(self.labels), **named}

    def to_json(self) -> str:
        """Return the text of what `from_json` reads."""
        return json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, value: object) -> Pages:
        """Make pages of parsed JSON. Raises ValueError: it is not what `to_json` writes."""
        if not isinstance(value, dict) or set(value) - {"unit"} != {"starts", "labels"}:
            raise ValueError("pages without starts and labels")
        starts, labels = value["starts"], value["labels"]
        if not isinstance(starts, list) or not isinstance(labels, list):
            raise ValueError("pages that are not lists")
        return cls(tuple(starts), tuple(labels), value.get("unit", "page"))


@dataclass(frozen=True)
class Edits:
    """Changes of a document's metadata that outlive its text: `merged` of them is what a search
    sees.

    `read` is the metadata that came with the document; `fields` were set, those called `removed`
    taken away.
    """

    read: dict[str, Any]
    fields: dict[str, Any] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fields or self.removed)

    @property
    def merged(self) -> dict[str, Any]:
        """The metadata as they are searched and shown."""
        return {
            **{name: value for name, value in self.read.items() if name not in self.removed},
            **self.fields,
        }

    def changed(self, fields: Mapping[str, Any], removed: Collection[str]) -> Edits:
        """Return these edits with more of them."""
        remaining = {name: value for name, value in self.fields.items() if name not in removed}
        return Edits(
            self.read, {**remaining, **fields}, tuple(sorted({*self.removed, *removed} - {*fields}))
        )

    def over(self, read: dict[str, Any], *, of_file: bool) -> Edits:
        """Return these edits over metadata that came later.

        What a file says again was not meant against an edit, so the edit stays. A document of a
        program names its fields on purpose: these count from now on, and the other edits stay.
        """
        named = set() if of_file else {*read}
        fields = {name: value for name, value in self.fields.items() if name not in named}
        return Edits(read, fields, tuple(name for name in self.removed if name not in named))

    def to_json(self) -> str | None:
        """Return them as they are stored; None where there are none."""
        if not self:
            return None
        body = {"read": self.read, "fields": self.fields, "removed": self.removed}
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Edits:
        """Read what `to_json` wrote. Raises ValueError, RecursionError: it is something else."""
        match json.loads(text):
            case {"read": dict(read), "fields": dict(fields), "removed": list(removed)}:
                if all(isinstance(name, str) for name in removed):
                    return cls(read, fields, tuple(removed))
        raise ValueError("not the edits of a document's metadata")


MAIL_TYPES = frozenset({"mail", "outlook", "applemail"})  # of documents, their field `type`
MAX_LINE_BYTES = 64 << 20  # bytes of a line, and of a document that is not read from a line
# a byte may become four, and a column of texts in memory ends at 2^31 bytes
LARGEST_LINE_BYTES = 256 << 20
SHOWN_CHARACTERS = 4096  # characters of an unusable line that the list of rejected lines repeats
MAX_INTEGER_BITS = (
    12_000  # of a whole number; Python itself refuses to write more than 4,300 digits
)
MAX_REASON_CHARACTERS = (
    300  # characters; what a hostile file is called or says of itself may stand in it
)
# of nested metadata; recursive readers of JSON, Python's among them, give up at about 1,000
MAX_DEPTH = 100
_NAMED_FIELDS = 20  # fields that a message names
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)

OnError = Literal["auto", "stop", "skip"]
"""What to do with an item that is no document: "skip" leaves it out and lists it in
`rejected.jsonl`, "auto" does so with files that were found in a folder and stops at all else.
"""
ON_ERROR = ("auto", "stop", "skip")


@dataclass(frozen=True)
class SourceLocation:
    """Where a document was read: a file (or what stands for one) and a line or row, counted from 1;
    0: all of it.
    """

    source: str
    line: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.source}, {self.unit} {self.line}" if self.line else self.source


def path_text(path: Path | str) -> str:
    r"""Return a path as text that UTF-8 can hold: a byte of a name that is not UTF-8 becomes
    "\xff".
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def prefix_of(title: str) -> str:
    """Return the text that is encoded in front of a document with this title."""
    return f"{title}\n" if title else ""


def metadata_json(metadata: Mapping[str, Any]) -> str:
    """Write metadata as they are stored."""
    return _ENCODER.encode(metadata)


def check_metadata(metadata: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return metadata as the store keeps them (see `to_plain`).

    Raises InputError: JSON cannot hold them.
    """
    try:
        plain: dict[str, Any] = _plain(metadata)
        _encodable("metadata", metadata_json(plain))
    except BadRecord as error:
        raise InputError(f"{where}: {error}") from error
    return plain


@dataclass(frozen=True)
class FileOrigin:
    """The file that a document was read from: how it is told whether it has changed, and where its
    pages begin.

    `sha256` is of its bytes, `labels_sha256` of what its folder says of it ("": nothing), both in
    hexadecimal digits; `folder` an absolute path; `pages` None where the file has none.
    """

    sha256: str
    folder: str
    pages: Pages | None = None
    labels_sha256: str = ""

    def __str__(self) -> str:
        return f"{self.sha256} {self.labels_sha256} {self.pages_json or ''}"

    @property
    def pages_json(self) -> str | None:
        """The pages as they are stored; None where the file has none."""
        return self.pages.to_json() if self.pages else None


@dataclass(frozen=True)
class Record:
    """One document: unique id, title (may be empty), text (may be empty), and everything else as
    metadata.

    `origin` is the file that holds this document, alone or as a mail of a mailbox, None for a line
    of a file or an object of Python. `id_is_made` says that the input had no id, and `id` is made
    of the content. `keywords` are words that find it beside those of its title and text: of its
    path, its front matter. `encoded` is what a model made of it before, and `edits` what people set
    in its metadata, where it comes out of a shard or an index.
    """

    id: str
    title: str
    text: str
    metadata: dict[str, Any]
    location: SourceLocation
    origin: FileOrigin | None = None
    id_is_made: bool = False
    encoded: EncodedRow | None = field(default=None, repr=False, compare=False)
    edits: Edits | None = None
    keywords: str = ""

    @property
    def prefix(self) -> str:
        """What is encoded in front of the text."""
        return prefix_of(self.title)

    def raw(self) -> str:
        """The document as a line of JSON that could be read again."""
        fields = {"_id": self.id, "title": self.title, "text": self.text, "metadata": self.metadata}
        return json.dumps(fields, ensure_ascii=False, allow_nan=False)

    @property
    def pages_json(self) -> str | None:
        """The pages of its file as they are stored; None where it has none."""
        return self.origin.pages_json if self.origin else None

    @cached_property
    def metadata_json(self) -> str:
        """The metadata as they are stored."""
        return metadata_json(self.metadata)

    def edited(self, edits: Edits | None) -> Record:
        """Return it with what people set in the metadata of the document that it replaces."""
        if edits is None or self.edits is not None:
            return self
        edits = edits.over(self.metadata, of_file=self.origin is not None)
        return replace(self, metadata=edits.merged, edits=edits or None)


@dataclass(frozen=True)
class OcrTry:
    """Under which conditions OCR did not read a file, or not all of it: the hash of the file's
    bytes, languages, "" without Tesseract, and seconds for a page.
    """

    sha256: str
    languages: str
    seconds: int


@dataclass(frozen=True)
class Rejected:
    """A line or a file of the input that is not a document, with the reason; `in_folder` says that
    it is a file found in a folder.

    `ocr_try`: OCR may read it another time.
    """

    location: SourceLocation
    reason: str
    raw: str
    in_folder: bool = False
    ocr_try: OcrTry | None = None

    def stops(self, on_error: OnError) -> bool:
        """Return whether a change stops at it."""
        return on_error == "stop" or (on_error == "auto" and not self.in_folder)

    def error(self) -> InputError:
        """Return the error that stops a change where such items are not skipped."""
        kind = "lines" if self.location.line else "files"
        return InputError(
            f"{self.location}: {self.reason}. Correct it, or leave such {kind} out with --on-error"
            " skip (on_error='skip')"
        )


def chain_digest(digest: str, item: Record | Rejected) -> str:
    """Return the hash of an input up to and with an item, from the hash up to it ("" before the
    first).
    """
    if isinstance(item, Record):
        parts = [
            item.id,
            item.title,
            item.text,
            item.metadata_json,
            *([str(item.origin)] if item.origin else []),
            *([item.keywords] if item.keywords else []),
        ]
    else:
        parts = [item.reason, item.raw]
    content = "".join([digest, *(f"{len(part)}," for part in parts), *parts])
    return hashlib.sha256(content.encode("utf-8", "backslashreplace")).hexdigest()


@dataclass(frozen=True)
class Notice:
    """Something to report that stops nothing: why a file was left out, or which part of one holds
    no text.

    `harmless` says that nothing is missing for it that a search could have found: a picture, a
    hidden file. `lost` says that the file is read, and a part of it is missing. `ocr_try`: OCR may
    read more another time.
    """

    path: str
    reason: str
    left_out: bool = True
    harmless: bool = False
    lost: bool = False
    ocr_try: OcrTry | None = None

    @property
    def is_loss(self) -> bool:
        """Whether something is missing that a search could have found."""
        return self.lost or (self.left_out and not self.harmless)


@dataclass(frozen=True)
class FieldNames:
    """Which fields of the input are the id, the title and the text.

    An id of None means `_id`, else `id`.
    """

    id: str | None = None
    title: str = "title"
    text: str = "text"


def as_text(value: object) -> str:
    """An unusable item of the input as text, cut where it is long (which the text then says)."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError) as error:  # a number of too many digits, a list in itself
        return f"<{type(value).__name__} that cannot be shown: {error}>"
    return (
        text
        if len(text) <= SHOWN_CHARACTERS
        else f"{text[:SHOWN_CHARACTERS]}... ({len(text):,} characters in all)"
    )


Item = Record | Rejected | Notice


class BadRecord(ValueError):
    """The reason why a mapping is not a document (internal: becomes `Rejected`)."""


def make_record(row: Mapping[str, Any], location: SourceLocation, names: FieldNames) -> Record:
    """Turn one parsed object into a `Record`.

    A field `metadata` that is itself an object (as in BEIR files) is merged with the other fields.
    Raises BadRecord: a field is missing, of the wrong type, not valid Unicode, or has one value and
    another in `metadata`.
    """
    id_field = names.id or ("_id" if "_id" in row else "id")
    title, text = _string(row, names.title, optional=True), _string(row, names.text)
    metadata = {k: v for k, v in row.items() if k not in (id_field, names.title, names.text)}
    nested = metadata.get("metadata")
    if isinstance(nested, Mapping):
        del metadata["metadata"]
        own = {names.title: title or None, names.text: text, "_id": row.get(id_field)}
        _check_merged(nested, {**own, **metadata})
        metadata = {**nested, **metadata}
    has_id = names.id is not None or id_field in row
    record = Record(_id(row, id_field) if has_id else "", title, text, _plain(metadata), location)
    stored = (
        ("id", record.id),
        ("title", title),
        ("text", text),
        ("metadata", record.metadata_json),
    )
    for name, value in stored:
        _encodable(name, value)
    return record if has_id else replace(record, id=content_id(record), id_is_made=True)


def _check_merged(nested: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Raise BadRecord where a field of `metadata` would be lost: there is another of its name."""
    for name, value in nested.items():
        other = others.get(name)
        is_same = other is None or _plain(value) == _plain(other)
        if not is_same and not (name == "_id" and str(value) == str(other)):
            raise BadRecord(
                f"the field {name!r} is {as_text(repr(other))}, and {as_text(repr(value))} in"
                " 'metadata', which is merged with the other fields; rename one of them"
            )


def read_row(
    row: Mapping[str, Any], location: SourceLocation, names: FieldNames
) -> Record | Rejected:
    """Make a document of an object, or say why it is none."""
    try:
        return make_record(row, location, names)
    except BadRecord as error:
        return Rejected(location, str(error), as_text(dict(row)))


def content_id(record: Record) -> str:
    """Make an id of all that a document holds: 32 hexadecimal digits, the same for the same
    document anywhere.
    """
    parts = (record.title, record.text, record.metadata_json)
    return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()[
        :32
    ]


def _id(row: Mapping[str, Any], field: str) -> str:
    value = row.get(field)
    if value is None:
        raise BadRecord(
            f"no id: the field {field!r} is {_missing(row, field)} (--id-field, id_field)"
        )
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise BadRecord(f"the id in field {field!r} is {_kind(value)}, not a string or an integer")
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise BadRecord(
            f"the id in field {field!r} is a whole number of more than {MAX_INTEGER_BITS:,} bits"
        )
    if value == "":
        raise BadRecord(f"the id in field {field!r} is empty")
    return str(value)


def _string(row: Mapping[str, Any], field: str, *, optional: bool = False) -> str:
    value = row.get(field)
    if value is None:
        if optional:
            return ""
        raise BadRecord(
            f"no text: the field {field!r} is {_missing(row, field)} (--text-field, text_field)"
        )
    if not isinstance(value, str):
        raise BadRecord(f"the field {field!r} is {_kind(value)}, not a string")
    return value


def _missing(row: Mapping[str, Any], field: str) -> str:
    """How a field is missing from an object, and which fields are there."""
    if field in row:
        return "null"
    listed = ", ".join(repr(name) for name in itertools.islice(row, _NAMED_FIELDS)) + (
        ", ..." if len(row) > _NAMED_FIELDS else ""
    )
    return f"missing; the fields are {as_text(listed)}" if row else "missing; the object is empty"


def _kind(value: object) -> str:
    names = {
        NoneType: "null",
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        list: "a list",
    }
    return (
        "an object"
        if isinstance(value, Mapping)
        else names.get(type(value), f"of type {type(value).__name__}")
    )


def _plain(value: Any, depth: int = 0) -> Any:
    """Turn what Parquet and CSV readers return into what JSON can hold; refuse the rest."""
    if depth > MAX_DEPTH:
        raise BadRecord(f"the metadata is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise BadRecord(
            "the metadata holds a whole number of more than 64 bits; write it as a string"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRecord(f"the metadata holds {value}, which JSON has no number for")
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        return [_plain(v, depth + 1) for v in value]
    if isinstance(value, (set, frozenset)):
        # in an order of its own: a set has another one in each process
        return sorted((_plain(v, depth + 1) for v in value), key=_set_order)
    try:
        return _plain(to_plain(value), depth + 1)
    except TypeError:
        raise BadRecord(
            f"the metadata holds a value of type {type(value).__name__}, which is not JSON"
        ) from None


def _set_order(value: Any) -> tuple[str, Any]:
    """What orders the elements of a set: numbers by size, other values by their JSON."""
    if isinstance(value, (int, float)):
        return "", value
    return "json", json.dumps(value, ensure_ascii=False)


def to_plain(value: Any) -> Any:
    """Return what is stored of a value, and looked for in its place: what JSON can hold, as it is
    or nearly so.

    Dates and times become texts in the form of ISO 8601, UUIDs and paths texts, decimals the
    nearest float64, numbers of numpy Python's. Raises TypeError: there is nothing like it in JSON.
    """
    if isinstance(value, np.datetime64) and isinstance(value.item(), int):
        value = value.astype("datetime64[us]")  # a finer one is a number to Python
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, PurePath)):
        return str(value)
    if isinstance(value, Decimal):
        return math.nan if value.is_nan() else float(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"{type(value).__name__} is not JSON")


def _encodable(field: str, value: str) -> None:
    if len(value) > LARGEST_LINE_BYTES:
        raise BadRecord(
            f"the {field} has {len(value):,} characters; at most {LARGEST_LINE_BYTES:,} can be"
            " stored"
        )
    if value.isascii():  # known without looking at the characters
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRecord(
            f"the {field} holds half of a surrogate pair at character {error.start}, not text"
        ) from error


def parse_json(text: str) -> Mapping[str, Any]:
    """Parse one JSON object, strictly (no NaN, no infinity).

    Raises BadRecord: it is not JSON, or not an object.
    """
    try:
        value = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique_fields)
    except RecursionError:
        raise BadRecord(f"nested more than {MAX_DEPTH} levels deep") from None
    except BadRecord:
        raise
    except ValueError as error:
        raise BadRecord(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRecord(f"a JSON object is needed, this is {_kind(value)}")
    return value


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its fields.

    Raises BadRecord: two have one name; Python's parser would keep the last one.
    """
    merged = dict(pairs)
    if len(merged) < len(pairs):
        ((name, count),) = Counter(name for name, _ in pairs).most_common(1)
        raise BadRecord(f"the field {as_text(name)!r} is there {count} times; rename one of them")
    return merged


def refuse_constant(name: str) -> None:
    """Refuse NaN and the infinities, which Python's parser of JSON would take."""
    raise BadRecord(f"not JSON: {name} is not a JSON number")
