"""What may be asked of the server, as types: requests are checked against them, and `/openapi.json`
shows them.

`limits` in these annotations are the limits of a server. The annotations are text until they are
looked at (`from __future__ import annotations`), so `with_limits` can read them again with the
limits of another server. Fields of `Search` without a description are those of `SearchOptions`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast, get_type_hints

import msgspec
from msgspec import Meta

from aveyb_retrieval.documents.records import MAX_PAGES
from aveyb_retrieval.errors import no_option
from aveyb_retrieval.indexes.search.options import (
    AtLeast1,
    Fusion,
    Granularity,
    Mode,
    Options,
    Share,
    Unit,
    unknown_option,
)
from aveyb_retrieval.indexes.search.several import MAX_INDEXES
from aveyb_retrieval.indexes.search.stored_documents import MAX_MATCHES
from aveyb_retrieval.indexes.store.expressions import MAX_PATTERN_CHARACTERS
from aveyb_retrieval.server.limits import ServerLimits

limits = ServerLimits()

DEFAULT_K = 10
MAX_FACETS = 20  # fields whose values are counted, by a request
MAX_VALUES = 100  # of a field, the most frequent ones, that an answer gives
MAX_COUNTED = 10_000  # documents that hold words of a query, whose values are counted
MAX_IDS = 10_000
MAX_FIELD_CHARACTERS = 200  # of the name of a field: twenty of them fit into a URL
MAX_WHOLE_NUMBER = 1 << 40  # a place in a text, an offset, a budget: more than there is of any
DEFAULT_CHARACTERS = 1 << 20  # of a document in one answer, unless more are asked for
MAX_MARKED = 20_000  # characters that are looked for on pages
MAX_GRANTED = 1 << 40  # of what makes no difference
CURSOR = "([0-9]{1,9})-([0-9a-f]{16})"
# Only shown: msgspec 0.22 frees memory twice when it lets go of a union of a list and a text with a
# pattern of its own.
NOT_BLANK = {"pattern": r"\S"}


def not_blank(characters: int) -> Meta:
    """Annotate a text that is not blank, of at most so many characters."""
    return Meta(max_length=characters, extra_json_schema=NOT_BLANK)


def items(most: int) -> Meta:
    """Annotate a list that is not empty, of at most so many items."""
    return Meta(min_length=1, max_length=most)


def description(words: str) -> Meta:
    """Annotate a field with what it means."""
    return Meta(description=words)


IndexField = Annotated[
    str | None, Meta(description="Name of the index; needed if several are served")
]
FilterField = Annotated[
    dict[str, Any] | None,
    Meta(
        description="Only documents that satisfy this condition on metadata, `_id` or `title`:"
        ' `{"year": {"$gte": 2020}}`',
        extra={"must_be": 'an object, such as {"year": {"$gte": 2020}}'},
    ),
]
FieldName = Annotated[str, not_blank(MAX_FIELD_CHARACTERS)]
Cursor = Annotated[
    str,
    Meta(
        pattern=f"^{CURSOR}$",
        extra={"must_be": "the `next` of an answer to one query"},
    ),
]
Reranker = Annotated[
    Literal["maxsim"] | None,
    Meta(extra={"must_be": "'maxsim'; a server loads no models that requests name"}),
]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a request, in a URL or in a body."""

    @classmethod
    def unknown(cls, name: str) -> str:
        """Say that there is no field of a name."""
        return no_option("this request", name, cls.__struct_fields__, kind="field")


class OfIndex(Request, frozen=True, kw_only=True):
    """Which index is meant."""

    index: IndexField = None


class Search(OfIndex, frozen=True, kw_only=True):
    """A search: what is searched for, and the options of `Retriever.search`."""

    query: Annotated[
        Annotated[str, not_blank(limits.max_query)]
        | Annotated[list[Annotated[str, not_blank(limits.max_query)]], items(limits.max_batch)],
        description("A question or words, or a list of them, each of which gets a result"),
    ]
    indexes: Annotated[
        Annotated[list[FieldName], items(MAX_INDEXES)] | None,
        description("Names of indexes to search in one ranking, instead of `index`"),
    ] = None
    k: Annotated[
        Annotated[int, Meta(ge=1, le=limits.max_k)] | None,
        description(f"Number of hits. Default {DEFAULT_K}, or the server's limit if that is less"),
    ] = None
    offset: Annotated[int, Meta(ge=0, le=limits.max_k)] = Options.offset
    cursor: Annotated[
        Cursor | None,
        description(
            "The `next` of the page before, with the same query and options, instead of `offset`:"
            " an error (409) if the index has changed since"
        ),
    ] = None
    text: Annotated[bool, description("Add the whole text of each document")] = False
    filter: FilterField = None
    ids: Annotated[list[str], Meta(max_length=MAX_IDS)] | None = None
    facets: Annotated[
        Annotated[list[FieldName], items(MAX_FACETS)] | None,
        description(f"Fields of metadata whose {MAX_VALUES} most frequent values are counted"),
    ] = None
    facets_of: Annotated[
        Literal["all", "found"] | None,
        description(
            'Of which documents: "all" that `filter` and `ids` let through, or "found": of these,'
            f" those that hold words of the query, up to {MAX_COUNTED:,} for each"
        ),
    ] = "all"
    mode: Mode = Options.mode
    granularity: Granularity | None = Options.granularity
    fusion: Fusion = Options.fusion
    weight: Share = Options.weight
    rerank: Annotated[
        Reranker,
        description(
            '"maxsim" orders the candidates again by late interaction; null (default) does not'
        ),
    ] = None
    unit: Unit = Options.unit
    per_document: AtLeast1 | None = Options.per_document
    diversity: Share = Options.diversity
    fold: bool = Options.fold
    min_score: float | None = Options.min_score
    passages: Annotated[int, Meta(ge=1, le=limits.max_passages)] = Options.passages
    context: Annotated[int, Meta(ge=0, le=limits.max_context)] | None = Options.context
    candidates: Annotated[int, Meta(ge=1, le=limits.max_candidates)] = Options.candidates
    exact: bool = Options.exact
    operators: bool = Options.operators
    boost: Annotated[
        dict[str, Any] | None,
        description(
            "Weights of fields that move the candidates after `rerank` and `min_score`:"
            ' `{"year": 0.1}`'
        ),
    ] = None
    sort: Annotated[
        str | None,
        description(
            "A field that orders the matching hits in place of their scores: `date`, or `-date`"
            " for the newest first"
        ),
    ] = None

    @classmethod
    def unknown(cls, name: str) -> str:
        """Say that a search has no option of a name."""
        return unknown_option(name, cls.__struct_fields__)


class SearchInUrl(Search, frozen=True, kw_only=True):
    """A search in a URL, for one query."""

    query: Annotated[str, not_blank(limits.max_query), description("A question or words")]


class DocumentPart(OfIndex, frozen=True, kw_only=True):
    """Which part of a document is read."""

    start: Annotated[int, Meta(ge=0, le=MAX_WHOLE_NUMBER), description("First character")] = 0
    stop: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_WHOLE_NUMBER)] | None,
        description(f"Character after the last. By default {DEFAULT_CHARACTERS:,} are given"),
    ] = None
    heading: Annotated[
        str | None,
        description(
            "Begin at the heading with these words, and end at the next one, instead of `start` and"
            " `stop`"
        ),
    ] = None
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_WHOLE_NUMBER)] | None,
        description("End the part after a sentence, at about this many tokens. Default no limit"),
    ] = None


class Check(OfIndex, frozen=True, kw_only=True):
    """An answer whose quotations are looked for."""

    answer: Annotated[
        str, not_blank(limits.max_text), description("Plain text or Markdown with quotations")
    ]
    filter: FilterField = None


class Grep(OfIndex, frozen=True, kw_only=True):
    """An expression whose matches are looked for."""

    pattern: Annotated[
        str,
        not_blank(MAX_PATTERN_CHARACTERS),
        description("A regular expression; `^` and `$` match at lines"),
    ]
    ignore_case: Annotated[bool, description("Match capitals and small letters alike")] = False
    limit: Annotated[int, Meta(ge=1, le=MAX_MATCHES), description("The most matches")] = 100
    filter: FilterField = None


class OutlinePage(OfIndex, frozen=True, kw_only=True):
    """Which documents are listed."""

    under: Annotated[
        str | None, description("Only documents whose ids begin with this, such as laws/")
    ] = None
    offset: Annotated[
        int, Meta(ge=0, le=MAX_WHOLE_NUMBER), description("Number of documents to skip")
    ] = 0


class BoxesOf(OfIndex, frozen=True, kw_only=True):
    """Characters whose rectangles are asked for."""

    start: Annotated[
        int,
        Meta(ge=0, le=MAX_WHOLE_NUMBER),
        description("First character of the document's text"),
    ]
    stop: Annotated[
        int,
        Meta(ge=0, le=MAX_WHOLE_NUMBER),
        description(f"Character after the last: at most {MAX_MARKED:,} together"),
    ]


class PageOf(OfIndex, frozen=True, kw_only=True):
    """A page that is asked for as a picture."""

    page: Annotated[int, Meta(ge=1, le=MAX_PAGES), description("Which page, counted from 1")]
    start: Annotated[
        int,
        Meta(ge=0, le=MAX_WHOLE_NUMBER),
        description("First character of the document's text that is marked"),
    ] = 0
    stop: Annotated[
        int,
        Meta(ge=0, le=MAX_WHOLE_NUMBER),
        description(
            f"Character after the last, at most {MAX_MARKED:,} together. With 0 nothing is marked"
        ),
    ] = 0


class NewDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document to be added, or to replace one; other fields are metadata."""

    text: Annotated[str, description("Text of the document")]
    id: Annotated[
        str | int,
        description(
            "Id of the document; without it one is made of the content. Fields that are not listed"
            " are metadata"
        ),
    ] = msgspec.field(name="_id", default="")
    title: Annotated[str, description('Title of the document, "" if it has none')] = ""


class MetadataChange(Request, frozen=True, kw_only=True):
    """New metadata of a document."""

    metadata: Annotated[
        dict[str, Any] | None,
        Meta(extra={"must_be": "an object of fields with their new values"}),
        description("Fields with their new values"),
    ] = None
    remove: Annotated[
        Annotated[list[Annotated[str, not_blank(limits.max_query)]], items(limits.max_batch)]
        | None,
        description("Names of fields to remove"),
    ] = None
    clear: Annotated[bool, description("First undo all that was set or removed before")] = False


class Embed(Request, frozen=True, kw_only=True):
    """Texts to be encoded, as OpenAI's clients send them."""

    input: Annotated[
        Annotated[str, not_blank(limits.max_text)]
        | Annotated[list[Annotated[str, not_blank(limits.max_text)]], items(limits.max_batch)],
        description("A text, or a list of them"),
    ]
    model: Annotated[
        str | None, description("NAME (default) encodes documents, NAME:query queries")
    ] = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        description(
            '"float" (default): a list of numbers; "base64": the bytes of float32, little-endian'
        ),
    ] = "float"
    dimensions: Annotated[
        int | None,
        description("Numbers of a vector: those of the model, others are refused"),
    ] = None
    user: Annotated[
        str | None,
        description("Ignored: keys and addresses identify clients"),
    ] = None


class TextObject(msgspec.Struct, frozen=True):
    """A text in an object, as some clients send it."""

    text: Annotated[str, description("The text")]


Granted = Annotated[int, Meta(ge=0, le=MAX_GRANTED)] | None


class Rerank(Request, frozen=True, kw_only=True):
    """Texts to be ordered, as Cohere's and Jina's clients send them."""

    query: Annotated[
        str, not_blank(limits.max_query), description("What the texts are compared with")
    ]
    documents: Annotated[
        list[Annotated[str, not_blank(limits.max_rerank_text)] | TextObject],
        items(limits.max_batch),
        description("What is ordered: texts, or objects that have one"),
    ]
    model: Annotated[str | None, description("Ignored: the server has one model")] = None
    top_n: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_GRANTED)] | None,
        description("How many of the best to give. Default all"),
    ] = None
    return_documents: Annotated[bool, description("Repeat the texts in the answer")] = False
    max_tokens_per_doc: Annotated[Granted, description("Ignored: texts are read whole")] = None
    max_chunks_per_doc: Annotated[Granted, description("Ignored: texts are read whole")] = None
    priority: Annotated[Granted, description("Ignored: clients take turns")] = None


class Nothing(Request, frozen=True, kw_only=True):
    """No fields."""


_R = TypeVar("_R", bound=Request)


@cache
def with_limits(request: type[_R], limits: ServerLimits) -> type[_R]:
    """Return a type of request that has the limits of a server."""
    annotations = get_type_hints(request, localns={"limits": limits}, include_extras=True)
    fields = [
        (
            field.name,
            annotations[field.name],
            msgspec.field(default=field.default),
        )
        for field in msgspec.structs.fields(request)
    ]
    return cast(
        "type[_R]",
        msgspec.defstruct(
            request.__name__,
            fields,
            bases=(request,),
            frozen=True,
            kw_only=True,
            forbid_unknown_fields=True,
            namespace={"__doc__": request.__doc__},
            module=request.__module__,
        ),
    )
