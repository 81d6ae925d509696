"""What the server answers, as types: they are written as JSON, and `/openapi.json` shows them.

Fields without a description are those of a class of the library, whose docstring describes them:
`openapi` names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from aveyb_retrieval.documents.records import UNITS
from aveyb_retrieval.indexes.search.quotes import QuoteCheck
from aveyb_retrieval.indexes.search.stored_documents import LISTED_DOCUMENTS, Match

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.search.hit import Hit

Count = Annotated[int, Meta(ge=0)]
Span = tuple[Count, Count]
IndexName = Annotated[str, Meta(description="Name of the index")]
DocumentId = Annotated[str, Meta(description="Id of the document")]
VersionName = Annotated[str, Meta(description="Version of the index")]
ModelName = Annotated[str, Meta(description="Name of the model")]
Documents = Annotated[int, Meta(ge=0, description="How many documents the index has")]
PageUnit = Annotated[str, Meta(description=f"What that page is: {', '.join(UNITS)}")]
Place = Annotated[int, Meta(ge=0, description="Number of the text in the request, counted from 0")]
Message = Annotated[str, Meta(description="What is wrong, and what to do")]


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer, or a part of one; all fields are there."""


# --- search


class PassageAnswer(Answer, frozen=True, kw_only=True):
    """A passage of a document."""

    text: str
    span: Span
    score: float
    heading: str
    headings: tuple[str, ...]
    scores: dict[str, float]
    page: Count | None
    page_label: str | None
    page_unit: PageUnit | None
    pages: Span | None


class HitAnswer(Answer, frozen=True, kw_only=True):
    """One document found, or one passage with `unit="passage"`."""

    id: str
    score: float
    title: str
    metadata: dict[str, Any]
    passage: str | None
    span: Span | None
    passages: tuple[PassageAnswer, ...]
    context: str | None
    context_span: Span | None
    confidence: Annotated[float, Meta(ge=0, le=1)] | None
    duplicates: tuple[str, ...]
    earlier: Annotated[
        tuple[str, ...],
        Meta(description="Older mails of the same conversation on the same matter"),
    ]
    date: Annotated[str | None, Meta(description="Date of the document")]
    author: Annotated[str | None, Meta(description="Its sender or author")]
    highlights: tuple[Span, ...]
    best_sentence: Span | None
    index: str | None
    heading: str
    headings: tuple[str, ...]
    scores: dict[str, float]
    page: Count | None
    page_label: str | None
    page_unit: PageUnit | None
    pages: Span | None
    text: str | UnsetType = UNSET

    @classmethod
    def of(cls, hit: Hit, *, text: bool) -> HitAnswer:
        """Return a hit as it is answered; `text` adds the whole text of the document."""
        fields = hit.to_dict(text=text)
        passages = tuple(PassageAnswer(**passage) for passage in fields.pop("passages"))
        return cls(**fields, passages=passages)


class ResultAnswer(Answer, frozen=True, kw_only=True):
    """What was found for one query."""

    query: Annotated[str, Meta(description="The query that this is the answer to")]
    words: Annotated[
        tuple[str, ...],
        Meta(
            description="Words of the query that are looked up, without stop words, stemmed if the"
            " index is"
        ),
    ]
    unmet: Annotated[
        tuple[str, ...],
        Meta(
            description="Conditions, as they were written, that nothing fulfills: why there are no"
            " hits"
        ),
    ]
    suggestions: Annotated[
        dict[str, tuple[str, ...]],
        Meta(
            description="Words that may be meant, the nearest first, by the words of the query that"
            " no document has"
        ),
    ]
    hits: Annotated[list[HitAnswer], Meta(description="What was found, best first")]
    next: Annotated[
        str | None, Meta(description="The `cursor` of the next page; null after the last")
    ]
    note: Annotated[
        str,
        Meta(
            description="Why nothing was found under a filter: fields that no document has; else"
            " empty"
        ),
    ]


class Value(Answer, frozen=True, kw_only=True):
    """A value of a field."""

    value: Annotated[str | float | bool, Meta(description="The value")]
    count: Annotated[
        int, Meta(ge=0, description="How many of the documents that are counted have it")
    ]


SearchedIndex = Annotated[
    str | None, Meta(description="Name of the index; null if several are searched")
]
Facets = Annotated[
    dict[str, list[Value]],
    Meta(description="The values of each field in `facets`, most frequent first"),
]


class SearchAnswer(ResultAnswer, frozen=True, kw_only=True):
    """What was found for the only query."""

    index: SearchedIndex
    facets: Facets


class SearchListAnswer(Answer, frozen=True, kw_only=True):
    """What was found for several queries."""

    index: SearchedIndex
    facets: Facets
    results: Annotated[list[ResultAnswer], Meta(description="What was found for each query")]


# --- documents


class DocumentAnswer(Answer, frozen=True, kw_only=True):
    """A document, or a part of it."""

    index: IndexName
    id: DocumentId
    title: Annotated[str, Meta(description='Title of the document, "" if it has none')]
    metadata: Annotated[dict[str, Any], Meta(description="All other fields of the document")]
    text: Annotated[str, Meta(description="Its text, or the characters in `span`")]
    span: Annotated[Span, Meta(description="Which characters these are: `[start, stop)`")]
    length: Annotated[int, Meta(ge=0, description="Characters of the whole text")]
    original: Annotated[
        bool, Meta(description="Whether `/originals/{id}` has the file that it was read from")
    ]


class Checked(Answer, frozen=True, kw_only=True):
    """The quotations of an answer."""

    index: IndexName
    quotes: Annotated[list[QuoteCheck], Meta(description="Each quotation, in order")]


class Matches(Answer, frozen=True, kw_only=True):
    """Matches of an expression."""

    index: IndexName
    matches: Annotated[
        list[Match], Meta(description="Where it matches, in the order of the documents")
    ]


class DocumentName(Answer, frozen=True, kw_only=True):
    """A document and what it is called."""

    id: DocumentId
    name: Annotated[str, Meta(description="Its title, else its first heading, else its id")]


class Folder(Answer, frozen=True, kw_only=True):
    """Documents whose ids begin alike."""

    under: Annotated[str, Meta(description="What the ids begin with: the `under` to look into it")]
    documents: Annotated[int, Meta(ge=1, description="How many begin so")]


class Outline(Answer, frozen=True, kw_only=True):
    """Documents, and folders of them."""

    index: IndexName
    folders: Annotated[
        list[Folder],
        Meta(
            description=(
                f"The folders in the ids, if there are more than {LISTED_DOCUMENTS} documents"
            )
        ),
    ]
    documents: Annotated[
        list[DocumentName], Meta(description=f"Up to {LISTED_DOCUMENTS}, with the folders")
    ]
    next: Annotated[
        Count | None, Meta(description="The `offset` of the next ones; null after the last")
    ]


class SectionAnswer(Answer, frozen=True, kw_only=True):
    """A heading of a document."""

    heading: Annotated[str, Meta(description="Its words")]
    span: Annotated[
        Span, Meta(description="Characters from it to the next heading: `[start, stop)`")
    ]
    page: Annotated[
        Count | None,
        Meta(description="The page that it stands on, counted from 1; null without pages"),
    ]
    place: Annotated[str, Meta(description='That page in words, as `Hit.place`; "" without pages')]


class Headings(Answer, frozen=True, kw_only=True):
    """The headings of a document."""

    index: IndexName
    id: DocumentId
    sections: Annotated[list[SectionAnswer], Meta(description="The headings, in order")]


class BoxAnswer(Answer, frozen=True, kw_only=True):
    """A rectangle on a page of a PDF."""

    page: Annotated[int, Meta(ge=1, description="Counted from 1")]
    left: Annotated[float, Meta(description="In PDF points from the left")]
    bottom: Annotated[float, Meta(description="In PDF points from the bottom")]
    right: Annotated[float, Meta(description="In PDF points from the left")]
    top: Annotated[float, Meta(description="In PDF points from the bottom")]


class Boxes(Answer, frozen=True, kw_only=True):
    """Where characters of a document stand on the pages of its PDF."""

    index: IndexName
    id: DocumentId
    boxes: Annotated[list[BoxAnswer], Meta(description="A rectangle for each line")]


class Changed(Answer, frozen=True, kw_only=True):
    """What a change did."""

    index: IndexName
    version: VersionName
    documents: Documents
    added: Annotated[int, Meta(ge=0, description="How many documents are new")]
    replaced: Annotated[int, Meta(ge=0, description="How many were replaced")]
    updated: Annotated[
        int, Meta(ge=0, description="How many have new metadata alone, so nothing was encoded")
    ]
    unchanged: Annotated[
        int, Meta(ge=0, description="How many were as given before, so nothing was written")
    ]
    deleted: Annotated[int, Meta(ge=0, description="How many were removed")]


class ServedIndex(Answer, frozen=True, kw_only=True):
    """An index that is served."""

    name: IndexName
    version: VersionName
    documents: Documents


class IndexList(Answer, frozen=True, kw_only=True):
    """The indexes of a server."""

    indexes: Annotated[list[ServedIndex], Meta(description="The indexes that are served")]
    model: Annotated[str | None, Meta(description="Name of the model; null if no index has one")]
    max_k: Annotated[int, Meta(ge=0, description="The most that `offset` and `k` may be together")]


# --- the model


class Usage(Answer, frozen=True, kw_only=True):
    """How much was read."""

    prompt_tokens: Annotated[int, Meta(ge=0, description="Tokens of all texts")]
    total_tokens: Annotated[int, Meta(ge=0, description="The same")]


class Embedding(Answer, frozen=True, kw_only=True):
    """The vector of a text."""

    object: Annotated[
        Literal["embedding"], Meta(description="Kind of this object, in OpenAI's words")
    ]
    index: Place
    embedding: Annotated[
        list[float] | str,
        Meta(description="The vector, of unit length, as `encoding_format` asks"),
    ]


class Embeddings(Answer, frozen=True, kw_only=True):
    """The vectors of texts."""

    object: Annotated[Literal["list"], Meta(description="Kind of this object, in OpenAI's words")]
    model: ModelName
    usage: Annotated[Usage, Meta(description="How much was read")]
    data: Annotated[list[Embedding], Meta(description="The vectors, in the order of the texts")]


class Model(Answer, frozen=True, kw_only=True):
    """A name of the model."""

    id: Annotated[str, Meta(description="NAME for documents, NAME:query for queries")]
    object: Annotated[Literal["model"], Meta(description="Kind of this object, in OpenAI's words")]
    created: Annotated[
        int, Meta(ge=0, description="When the server was started, in seconds since 1970")
    ]
    owned_by: Annotated[str, Meta(description="Always aveyb-retrieval")]


class Models(Answer, frozen=True, kw_only=True):
    """The names of the model."""

    object: Annotated[Literal["list"], Meta(description="Kind of this object, in OpenAI's words")]
    data: Annotated[list[Model], Meta(description="The names")]


class RankedText(Answer, frozen=True, kw_only=True):
    """A text that was ordered."""

    text: Annotated[str, Meta(description="The text")]


class Ranked(Answer, frozen=True, kw_only=True):
    """The place of a text in the order."""

    index: Place
    relevance_score: Annotated[
        float,
        Meta(
            description="Mean over the query's tokens of the best cosine with a token of the text"
        ),
    ]
    document: Annotated[
        RankedText | UnsetType,
        Meta(description="The text, if `return_documents` asks for it"),
    ] = UNSET


class Reranked(Answer, frozen=True, kw_only=True):
    """Texts in the order of a query."""

    id: Annotated[str, Meta(description="Another for each answer")]
    model: ModelName
    results: Annotated[list[Ranked], Meta(description="The texts, best first")]


# --- the server


class Health(Answer, frozen=True, kw_only=True):
    """The server answers."""

    status: Annotated[
        Literal["ok"], Meta(description="Always ok: what cannot answer does not answer")
    ]


class Error(Answer, frozen=True, kw_only=True):
    """Why a request is not answered."""

    error: Message
    error_type: Annotated[str, Meta(description="The kind of error")]


class OpenAIErrorFields(Answer, frozen=True, kw_only=True):
    """What is wrong."""

    message: Message
    type: Annotated[str, Meta(description="The kind of error, in OpenAI's words")]
    param: Annotated[str | None, Meta(description="Always null")]
    code: Annotated[str | None, Meta(description="A name for this error, if it has one")]


class OpenAIError(Answer, frozen=True, kw_only=True):
    """Why a request under `/v1/` is not answered."""

    error: Annotated[OpenAIErrorFields, Meta(description="What is wrong")]
