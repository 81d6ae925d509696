"""Options that several commands of `aveyb-index` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.common import PRECISION, together

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = click.Path(path_type=Path)


class _Index(click.ParamType):
    """An index directory, or the address of a collection (which a path would not keep as it is)."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> str | Path:
        return value if "://" in str(value) else Path(value)


INDEX = _Index()


def _parse_types(given: tuple[str, ...]) -> dict[str, str]:
    """Parse "year=int" or "year=int,price=float"."""
    types = {}
    for pair in ",".join(given).split(",") if given else ():
        column, equals, kind = pair.rpartition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not COLUMN=TYPE, such as year=int")
        types[column] = kind
    return types


def granularity(meaning: str) -> Callable[[Any], Any]:
    """Make the option `--granularity` with this help."""
    return click.option(
        "--granularity",
        type=click.Choice(["document", "passage", "both"]),
        help=f"{meaning}  [default: both]",
    )


def storage_dtype(meaning: str) -> Callable[[Any], Any]:
    """Make the option `--storage-dtype` with this help."""
    return click.option(
        "--storage-dtype",
        type=click.Choice(["float32", "float16"]),
        help=f"{meaning}  [default: float32]",
    )


ON_ERROR = together(
    click.option(
        "--on-error",
        type=click.Choice(["auto", "stop", "skip"]),
        default="auto",
        help="A malformed line or unreadable file: stop, or skip it and list it; auto skips files of "
        "folders and stops at all else.",
    ),
    click.option("--strict", "on_error", flag_value="stop", help="The same as --on-error stop."),
)
FILES = together(
    click.option("--follow-links", is_flag=True, help="Also read links that are found in folders."),
    click.option("--file-seconds", type=click.IntRange(min=1), default=120, metavar="N",
                 help="Processor time that reading one file may take."),
)  # fmt: skip
MAX_LINE = click.option(
    "--max-line",
    type=int,
    default=64 << 20,
    metavar="BYTES",
    help="Longest line, or text of a file, that is read as a document.",
)
ENCODING = click.option("--encoding", help="Encoding of text files, such as cp1252.  [default: UTF-8]")
VERBOSE = click.option("--verbose", is_flag=True, help="Name every file that was left out.")
FIELDS = together(
    MAX_LINE,
    ENCODING,
    click.option("--types", metavar="COLUMN=TYPE", multiple=True, callback=lambda _, __, given: _parse_types(given),
                 help="Type of a CSV column: int, float, bool or string.  [default: by its values] Repeatable."),
    click.option("--id-field", help="Field that holds the id.  [default: _id, else id, else made of the content]"),
    click.option("--title-field", default="title", help="Field that holds the title."),
    click.option("--text-field", default="text", help="Field that holds the text."),
)  # fmt: skip
READING = together(ON_ERROR, FILES, FIELDS)
WRITING = together(
    click.option("--model", help="Model folder or name.  [default: the embedded one]"),
    click.option("--device", default="cpu", help="Device of the model."),
    PRECISION,
    click.option("--restart", is_flag=True, help="Discard an interrupted change and start again."),
    click.option("--quiet", is_flag=True, help="Show no progress."),
)
VECTORS = click.option("--vectors", help="Vectors made elsewhere: .npy, .parquet, or a folder or URL of shards.")
# No defaults: what is not given is as in the model, or the shards, that an index is made of.
CUTTING = together(
    click.option("--max-tokens", type=int, help="Truncate documents to N tokens.  [default: no limit]", metavar="N"),
    click.option("--passage-tokens", type=int, help="Largest passage, in tokens.  [default: 256]", metavar="N"),
    click.option("--passage-overlap", type=int, metavar="N",
                 help="Tokens shared with the passage before.  [default: 0]"),
    click.option("--late/--one-by-one", default=None,
                 help="Encode passages within their document, or alone.  [default: the model's way]"),
)  # fmt: skip
MAKING = together(
    granularity("Vectors to make and to search."),
    click.option("--index", default="auto", help="auto (chosen by size) or a FAISS factory string."),
    click.option("--recall", type=float, help="Tune the search until it finds this share of the exact results."),
    storage_dtype("Type of the vectors on disk."),
    click.option(
        "--language",
        help="Language of the words: its stemmer and stop words, or none.  [default: english]",
    ),
    CUTTING,
    click.option(
        "--token-vectors",
        type=click.Choice(["int8", "1bit"]),
        help="Also keep a vector of every token, for --rerank maxsim: 128 or 16 bytes each.",
    ),
)
INSERTING = together(
    click.argument("directory", type=PATH),
    click.argument("corpus", nargs=-1),
    VECTORS,
    READING,
    WRITING,
)
