"""`aveyb-serve`: indexes over HTTP, with a page. All logic lives in `aveyb_retrieval.server`."""

from __future__ import annotations

from dataclasses import fields
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from aveyb_retrieval.cli import common
from aveyb_retrieval.cli.help import examples
from aveyb_retrieval.errors import ConfigError, extra_for, plural
from aveyb_retrieval.server.addresses import LOOPBACK
from aveyb_retrieval.server.limits import ServerLimits, flag

if TYPE_CHECKING:
    from pathlib import Path


LIMITS = common.gather(
    "limits",
    ServerLimits,
    *(
        click.option(
            flag(limit.name),
            type=type(limit.default),
            default=limit.default,
            metavar=limit.metadata["unit"],
            help=limit.metadata["meaning"],
        )
        for limit in fields(ServerLimits)
    ),
)


@click.command(
    cls=common.Command,
    context_settings=common.CONTEXT,
    epilog=examples(
        "aveyb-serve my-index", "aveyb-serve my-index --host 0.0.0.0 --port 8080 --keys keys.json"
    ),
)
@click.version_option(package_name="aveyb-retrieval")
@click.argument("indexes", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, help="Port; 0 for a free one.")
@common.path(
    "--api-key-file",
    "File of keys, one on each line; requests need one as Authorization: Bearer KEY.",
)
@common.path("--write-key-file", "File of keys that may also change documents.")
@common.path(
    "--keys", "JSON file of keys with rights and filters, read again when it changes.", "key_file"
)
@click.option(
    "--access-log",
    metavar="FILE",
    help="Add a line for each request: who asked for what; - prints it.",
)
@click.option(
    "--log-questions",
    is_flag=True,
    help="With --access-log: questions as they are, instead of their hashes.",
)
@click.option(
    "--originals",
    is_flag=True,
    help="Also give out the files that documents were read from, if unchanged.",
)
@click.option("--no-key", is_flag=True, help="Listen to other machines without a key.")
@common.repeatable("--allow-host", "hosts", "Name that the server is reached by.", metavar="NAME")
@common.repeatable(
    "--cors-origin",
    "cors_origins",
    "Origin whose pages may ask, as https://app.example.org.",
    metavar="ORIGIN",
)
@common.repeatable(
    "--trust-proxy",
    "proxies",
    "Address of a proxy whose X-Forwarded-For names the client.",
    metavar="ADDRESS",
)
@click.option("--model", help="Folder or name of the model.  [default: where it was at the build]")
@click.option("--device", default="cpu", help="Device of the model and of the search.")
@common.PRECISION
@common.cache_options
@LIMITS
def main(
    indexes: tuple[str, ...],
    host: str,
    port: int,
    api_key_file: Path | None,
    write_key_file: Path | None,
    key_file: Path | None,
    access_log: str | None,
    log_questions: bool,
    originals: bool,
    no_key: bool,
    hosts: tuple[str, ...],
    cors_origins: tuple[str, ...],
    proxies: tuple[str, ...],
    limits: ServerLimits,
    **model: Any,
) -> None:
    """Serve INDEXES over HTTP: a page for people, JSON for programs.

    INDEXES are folders, or addresses such as s3://BUCKET/PATH; NAME=DIR gives an index another
    name than its folder. A new version of an index is served within a second or two. SIGTERM and
    Ctrl-C end the server when the running requests are answered.
    """
    with extra_for("aveyb-serve", "server"):
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    from aveyb_retrieval.server.access_log import AccessLog
    from aveyb_retrieval.server.app import create_app, listen, serve
    from aveyb_retrieval.server.counters import Metrics
    from aveyb_retrieval.server.indexes import Indexes, named_paths
    from aveyb_retrieval.server.keys import KeyFile, Keys, read_keys
    from aveyb_retrieval.server.origins import Origins
    from aveyb_retrieval.server.refusals import log_shortly

    log_shortly()
    reading, writing = (read_keys(path) if path else () for path in (api_key_file, write_key_file))
    keys = KeyFile(key_file, reading, writing) if key_file else Keys(reading, writing)
    log = AccessLog(access_log, questions=log_questions) if access_log else None
    local, closed = host in LOOPBACK, keys.current().reading > 0
    if not (local or closed or no_key):
        raise ConfigError(
            f"--host {host}: other machines can reach it; give --api-key-file, or --no-key to allow"
            " that, or --keys"
        )
    names = {*LOOPBACK, *(name.lower() for name in hosts)} if local or hosts else None
    if names is None and not closed:
        click.echo(
            f"--host {host} --no-key: a page that somebody in this network visits can ask this"
            " server too, by a name of its own; name what users type with --allow-host",
            err=True,
        )
    origins = Origins(names, cors_origins)
    listener = listen(host, port)
    counters = Metrics()
    opened = Indexes.open(named_paths(indexes), observe=counters.batches.observe, **model)
    app = create_app(
        opened,
        limits=limits,
        keys=keys,
        log=log,
        origins=origins,
        counters=counters,
        originals=originals,
    )
    for entry, retriever in product(keys.current().entries, opened.retrievers.values()):
        if entry.filter and not retriever.count(entry.filter):
            why = "; ".join(["no document satisfies its filter", *retriever.advice(entry.filter)])
            click.echo(f"{retriever.path}: key {entry.name!r}: {why}", err=True)

    def started() -> None:
        for name, retriever in opened.retrievers.items():
            click.echo(
                f"{name}: {plural(len(retriever), 'document')}, version {retriever.version}",
                err=True,
            )
        click.echo(
            f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/", err=True
        )

    serve(app, listener, limits=limits, proxies=proxies, started=started)


if __name__ == "__main__":
    main()
