"""What all commands share: options, how errors are told, and how many processors a command may use.

OpenMP's threads spin while they wait for each other, and by default there are as many as the
machine has processors. On a busy machine, or in a container that may use two processors of
sixty-four, they take turns at spinning: an index took four to five times as long to build. The
variables below are read when torch and FAISS are loaded, so they are set before.
"""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli.help import HelpfulCommand
from aveyb_retrieval.errors import AveyBError, ConfigError, extra_for, printable
from aveyb_retrieval.system import usable_processors

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from aveyb_retrieval.indexes.search.retriever import Retriever
    from aveyb_retrieval.indexes.types import Progress


def respect_processors(
    environment: MutableMapping[str, str] = os.environ, root: Path = Path("/")
) -> None:
    """Let threads wait without spinning, and no more of them than the container's quota; what the
    user chose stays.
    """
    if "torch" in sys.modules:  # which has read its settings
        return
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    quota = processor_quota(root)
    if quota is not None and quota < usable_processors():
        environment.setdefault("OMP_NUM_THREADS", str(max(1, math.floor(quota))))


def processor_quota(root: Path = Path("/")) -> float | None:
    """How many processors Linux's control groups of this process allow, in version 1 or 2, up to
    the topmost one.
    """
    quotas = [_quota(folder) for folder in _groups(root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux, or not mounted
        return []
    groups = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        group = mount / name.strip("/")
        groups += [folder for folder in (group, *group.parents) if folder.is_relative_to(mount)]
    return groups


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            )
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):  # no limit is set in this group
        return None


PATH = click.Path(path_type=Path)
CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}
LINE_SECONDS = 30.0

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*decorators: Decorator) -> Decorator:
    """Combine several options into one decorator, in the order given."""
    return lambda function: functools.reduce(
        lambda made, option: option(made), reversed(decorators), function
    )


def choose(flag: str, values: str, meaning: str, **more: Any) -> Decorator:
    """Make an option that takes one of some values, listed with blanks between; the first one by
    default.
    """
    choices = values.split()
    return click.option(
        flag, type=click.Choice(choices), help=meaning, **{"default": choices[0], **more}
    )


def number(flag: str, meaning: str, *, least: int = 1, **more: Any) -> Decorator:
    """Make an option that takes a whole number of at least `least`."""
    return click.option(
        flag, type=click.IntRange(min=least), help=meaning, **{"metavar": "N", **more}
    )


def path(flag: str, meaning: str, *names: str, **more: Any) -> Decorator:
    """Make an option that takes a path."""
    return click.option(flag, *names, type=PATH, help=meaning, **more)


def repeatable(flag: str, name: str, meaning: str, **more: Any) -> Decorator:
    """Make an option that may be given several times."""
    return click.option(flag, name, multiple=True, help=f"{meaning} Repeatable.", **more)


def granularity(meaning: str) -> Decorator:
    """Make the option `--granularity` with this help."""
    return choose("--granularity", "document passage both", meaning, default=None)


PRECISION = choose(
    "--precision",
    "auto int8 float32 bfloat16 float16",
    "Precision of the model's arithmetic: int8 on CPUs (auto, if the model has that form).",
)
MODE = choose(
    "--mode",
    "dense lexical hybrid",
    "Search by vectors, by words (BM25), or by both.",
    default="hybrid",
)
QUIET = click.option("--quiet", is_flag=True, help="Show no progress.")
LARGEST_COUNT = 2**53  # beyond it, floats leave whole numbers out, and nothing here counts as far


def check_numbers(command: click.Command) -> None:
    """Let a command refuse numbers that no option of any command can mean: NaN, infinity, and
    beyond 2^53.

    They pass click's types and ranges, and would end in some library's error long after the data
    have been read.
    """

    def check(
        then: Callable[..., Any] | None, context: click.Context, option: click.Parameter, value: Any
    ) -> Any:
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, (int, float)) and not abs(number) <= LARGEST_COUNT:
                raise click.BadParameter(
                    f"{number} is not a number from -2^53 to 2^53.", context, option
                )
        return value if then is None else then(context, option, value)

    for option in command.params:
        if isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
            option.callback = functools.partial(check, option.callback)


_OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # of a write, not of a pipe


class Command(HelpfulCommand):
    """A command that prints the package's own errors, and what the system says of a file, and exits
    with code 2.
    """

    resumable: Collection[str] = ()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        check_numbers(self)

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run the program; an output without room is said in a line."""
        try:
            return super().main(*arguments, **options)
        except OSError as error:
            if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
                raise
            # what is still buffered has nowhere to go, and Python would try at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            click.echo(f"{self.name}: the output cannot be written: {error.strerror}", err=True)
            sys.exit(2)

    def invoke(self, context: click.Context) -> Any:
        """Run the command, once it is settled how threads are used."""
        respect_processors()
        try:
            with extra_for(_typed(context)):
                result = super().invoke(context)
                sys.stdout.flush()
                return result
        except AveyBError as error:
            click.echo(
                f"{_typed(context)}: {printable(_in_options(context, str(error)))}", err=True
            )
            context.exit(2)
        except OSError as error:
            if error.filename is None:  # of standard output, which `main` and click know
                raise
            click.echo(
                f"{_typed(context)}: {printable(str(error.filename))}: {error.strerror}", err=True
            )
            context.exit(2)
        except KeyboardInterrupt:
            if context.invoked_subcommand not in self.resumable:
                raise
            click.echo(
                f"{_typed(context)}: interrupted; the same command continues where this one"
                " stopped",
                err=True,
            )
            context.exit(130)


def _typed(context: click.Context) -> str:
    return " ".join(filter(None, (context.info_name, context.invoked_subcommand)))


def _in_options(context: click.Context, message: str) -> str:
    """Return a message about a function's argument as one about the option typed: `--min-score 2`
    for min_score=2, `--max-tokens is 0` for max_tokens is 0.
    """
    command: click.Command | None = context.command
    if isinstance(command, click.Group):
        command = command.get_command(context, context.invoked_subcommand or "")
    for option in command.params if command else ():
        for written in (f"{option.name}=", f"{option.name} is "):
            if message.startswith(written):
                said = message.removeprefix(option.name or "").removeprefix("=").lstrip()
                return f"{option.opts[0]} {said}"
    return message


class Commands(Command, click.Group):
    """A group of such commands; `resumable` names those that continue what an interrupted run of
    them has done.
    """

    command_class = HelpfulCommand

    def __init__(self, *arguments: Any, resumable: Collection[str] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.resumable = resumable

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command whose numbers are checked."""
        check_numbers(cmd)
        super().add_command(cmd, name)


def parse_json(context: click.Context, option: click.Parameter, text: str | None) -> Any:
    """Read the JSON of an option, as click's callback, or raise ConfigError; None where it is not
    given.
    """
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        what = f"{option.opts[0]} {text!r}: not JSON ({error})"
        raise ConfigError(f"{what}; write it as '{{\"field\": value}}'") from error


def filter_option(meaning: str) -> Decorator:
    """Make the option `--filter` with this help; the command gets its condition as `where`."""
    return click.option("--filter", "where", metavar="JSON", callback=parse_json, help=meaning)


def _progress_lines() -> Progress:
    began = last = time.monotonic()

    def show(stage: str, done: int, total: int | None, tokens: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < LINE_SECONDS:
            return
        last = now
        of = "" if total is None else f" of {total:,}"
        click.echo(f"{stage}: {done:,}{of}, {tokens:,} tokens, {now - began:,.0f} s", err=True)

    return show


@contextmanager
def progress_bar(is_shown: bool) -> Iterator[Progress]:
    """Show the progress of a change on stderr, one line per stage with rates; gives the function to
    call.

    Where stderr is no terminal, a line is written every `LINE_SECONDS`, for whoever reads the log.
    """
    if not is_shown:
        yield lambda stage, done, total, tokens: None
        return
    if not sys.stderr.isatty():
        yield _progress_lines()
        return
    from rich import console, progress

    text = progress.TextColumn
    columns = (text("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn())
    times = (
        text("{task.fields[rates]}"),
        progress.TimeElapsedColumn(),
        text("left"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, *times, console=console.Console(stderr=True)) as bar:
        began: dict[str, tuple[Any, int]] = {}  # a continued change does not begin at 0

        def show(stage: str, done: int, total: int | None, tokens: int) -> None:
            if stage not in began:
                began[stage] = bar.add_task(stage, total=total, rates=""), done
            task, first = began[stage]
            seconds = bar.tasks[task].elapsed or 0.0
            rates = ""
            if seconds > 0.1:
                rates = f"{(done - first) / seconds:,.0f}/s" + (
                    f"  {tokens / seconds:,.0f} tokens/s" if tokens else ""
                )
            bar.update(task, completed=done, total=total, rates=rates)

        yield show


class _Index(click.ParamType):  # a path would not keep an address as it is
    name = "path"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> str | Path:
        return value if "://" in str(value) else Path(value)


INDEX = _Index()


def _to_environment(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None:
        os.environ[str(option.envvar)] = str(value)


def cache_options(command: Any, number: int = 3) -> Any:
    """Add the (first) options of the cache in which indexes of object stores are kept;
    `indexes/store/place.py` reads them.
    """
    for name, metavar, default, meaning in reversed(_CACHE[:number]):
        command = click.option(
            name,
            envvar=f"AVEYB_INDEX_{name[2:].upper().replace('-', '_')}",
            metavar=metavar,
            type=str if metavar == "DIR" else click.IntRange(0, 1 << 60),
            expose_value=False,
            is_eager=True,
            callback=_to_environment,
            help=f"{meaning}  [default: {default}]",
        )(command)
    return command


_CACHE = (
    (
        "--cache",
        "DIR",
        "~/.cache/aveyb-retrieval/indexes",
        "Folder for copies of indexes in object stores.",
    ),
    ("--cache-limit", "BYTES", "10 GiB", "Size of all these copies together."),
    ("--cache-whole", "BYTES", "256 MiB", "Larger indexes are read in parts."),
)


def opened(directory: str | Path | list[str | Path], **options: Any) -> Retriever:
    """Open an index for reading; what it needs is loaded when a command runs."""
    from aveyb_retrieval.indexes.search.retriever import Retriever

    return Retriever.load(directory, **options)


def _parse_types(texts: tuple[str, ...]) -> dict[str, str]:
    types = {}
    for pair in ",".join(texts).split(",") if texts else ():
        column, equals, kind = pair.rpartition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not COLUMN=TYPE, such as year=int")
        types[column] = kind
    return types


ON_ERROR = choose(
    "--on-error",
    "auto stop skip",
    "A malformed line or unreadable file: stop, or skip it and list it; auto "
    "skips files of folders and stops at all else.",
)
FILES = together(
    click.option("--follow-links/--no-follow-links",
                 help="Also read links that are found in folders; kept for a later sync."),
    number("--file-seconds", "Processor time that reading one file may take.", default=120),
    click.option("--path-fields", metavar="PATTERN",
                 help="Metadata by the paths of files below a folder, such as '{team}/{year}/*'; "
                      "kept for a later sync, until '' clears it."),
    click.option("--exclude", metavar="PATTERN", multiple=True,
                 help="Files and folders that are left out, as in a .gitignore file, such as "
                      "'old/' or '*.log'. Repeatable; kept for a later sync, until '' clears "
                      "them."),
    number("--ocr-seconds", "Seconds that OCR of one page may take; kept for a later sync.",
           default=60),
    click.option("--ocr-languages", metavar="LANGUAGES",
                 help="Languages of scanned pages as Tesseract names them, such as deu+eng; kept "
                      "for a later sync, until '' clears them.  [default: all that are installed]"),
)  # fmt: skip
MAX_LINE = number(
    "--max-line",
    "Longest line, or text of a file, that is read as a document.",
    default=64 << 20,
    metavar="BYTES",
)
ENCODING = click.option(
    "--encoding",
    help="Encoding of texts that are not UTF-8 and do not name their own, such as cp1252; kept for "
    "a later sync, until '' clears it.",
)
VERBOSE = click.option("--verbose", is_flag=True, help="Name every file that was left out.")
FIELDS = together(
    MAX_LINE,
    ENCODING,
    click.option(
        "--types",
        metavar="COLUMN=TYPE",
        multiple=True,
        callback=lambda _, __, texts: _parse_types(texts),
        help=(
            "Type of a CSV column: int, float, bool or string.  [default: by its values]"
            " Repeatable."
        ),
    ),
    click.option(
        "--id-field",
        help="Field that holds the id.  [default: _id, else id, else made of the content]",
    ),
    click.option("--title-field", default="title", help="Field that holds the title."),
    click.option("--text-field", default="text", help="Field that holds the text."),
)
READING = together(ON_ERROR, FILES, FIELDS)
RESTART = click.option(
    "--restart", is_flag=True, help="Discard an interrupted change and start again."
)
WAIT = click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    help="Wait this long for another writer of the index to end; for one of an object store 60"
    " seconds unless a number above 0 is given.",
)
WRITING = together(
    click.option("--model", help="Model folder or name.  [default: the embedded one]"),
    click.option("--device", default="cpu", help="Device of the model."),
    PRECISION,
    RESTART,
    QUIET,
)
VECTORS = click.option(
    "--vectors", help="Vectors made elsewhere: .npy, .parquet, an index, or a folder of shards."
)
# No defaults: what is not given is as in the model, or the indexes, that an index is made of.
CUTTING = together(
    number("--max-tokens", "Truncate documents to N tokens.  [default: no limit]"),
    number("--passage-tokens", "Largest passage, in tokens.  [default: the model's, mostly 256]"),
    number("--passage-overlap", "Tokens shared with the passage before.  [default: 0]", least=0),
    click.option(
        "--late/--one-by-one",
        default=None,
        help="Encode passages within their document, or alone.  [default: the model's way]",
    ),
)
MAKING = together(
    granularity("Vectors to make and to search.  [default: both]"),
    click.option(
        "--index",
        default="auto",
        help="auto (by size), none (exact), or a FAISS type: HNSW32, IVF256,Flat;nprobe=64.",
    ),
    choose(
        "--storage-dtype",
        "float32 float16",
        "Type of the vectors on disk.  [default: float32]",
        default=None,
    ),
    click.option(
        "--language",
        help="Language of the words: its stemmer and stop words, none, or auto: that of each"
        " document.  [default: auto]",
    ),
    click.option(
        "--keep-accents",
        is_flag=True,
        default=None,
        help="Distinguish words by their accents.",
    ),
    click.option("--synonyms", metavar="FILE", help="File of synonyms and protected words."),
    CUTTING,
    choose(
        "--token-vectors",
        "int8 1bit",
        "Also keep a vector of every token, for --rerank maxsim: 128 or 16 bytes each.",
        default=None,
    ),
)
_INTO = (click.argument("directory", type=INDEX), click.argument("corpus", nargs=-1))
INSERTING = together(*_INTO, VECTORS, READING, WRITING, WAIT)


def gather(parameter: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Pass several options, in the order in which help shows them, to a command as one argument,
    which `make` makes.
    """

    def declared() -> None: ...

    for option in reversed(options):
        option(declared)
    own: list[click.Parameter] = declared.__click_params__  # type: ignore[attr-defined]  # made by click's decorators
    names = [str(option.name) for option in own]

    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def gathered(**values: Any) -> Any:
            values[parameter] = make(**{name: values.pop(name) for name in names})
            return function(**values)

        own_parameters = getattr(function, "__click_params__", [])
        gathered.__click_params__ = [*own_parameters, *own]  # type: ignore[attr-defined]  # where click looks for them
        return gathered

    return apply


def settings_options(
    parameter: str, defaults: Any, *more: Decorator, make: Callable[..., Any] | None = None
) -> Decorator:
    """Derive an option from each described field of a settings object; the command gets the
    settings as `parameter`.

    The fields are declared by `training.settings.setting`. `make` makes the argument, also by
    `more` options; None: `defaults` with the given values in their place.
    """
    from aveyb_retrieval.training.settings import described

    options = [
        _option(name, getattr(defaults, name), about)
        for name, about in described(type(defaults)).items()
    ]
    return gather(parameter, make or functools.partial(replace, defaults), *options, *more)


def _option(name: str, default: Any, about: Mapping[str, Any]) -> Decorator:
    flag, text = f"--{name.replace('_', '-')}", about["help"]
    if isinstance(default, bool):
        return click.option(flag, name, is_flag=True, default=default, help=text)
    kind: Any = about["kind"] or (float if isinstance(default, tuple) else type(default))
    if (limits := about["limits"]) is not None:
        most = None if limits.most == math.inf else kind(limits.most)
        ranged: Any = click.IntRange if kind is int else click.FloatRange
        kind = ranged(
            kind(limits.least), most, min_open=limits.least_open, max_open=limits.most_open
        )
    more: dict[str, Any] = {"show_default": default is not None}
    if isinstance(default, tuple):
        more |= {"multiple": True} if about["kind"] else {"nargs": len(default)}
    elif about["choices"]:
        kind = click.Choice(about["choices"])
    return click.option(flag, name, type=kind, default=default, help=text, **more)


def plain(value: object) -> str:
    """Write a setting or a count for people."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
