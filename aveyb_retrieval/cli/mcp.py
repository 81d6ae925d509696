"""`aveyb-mcp`: an index as tools of an agent. All logic lives in `aveyb_retrieval.integrations.mcp`."""

from __future__ import annotations

from pathlib import Path

import click

from aveyb_retrieval.cli.common import CONTEXT, MODE, Command
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.server.http import LOOPBACK

PORT = 8765


@click.command(cls=Command, context_settings=CONTEXT)
@click.version_option(package_name="aveyb-retrieval")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--http", is_flag=True, help="Serve streamable HTTP at /mcp, instead of standard input and output.")
@click.option("--host", default="127.0.0.1", help="With --http: address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), help=f"With --http: port.  [default: {PORT}]")
@click.option("--no-key", is_flag=True, help="With --http: let other machines ask; there are no keys.")
@click.option("--name", help="What agents call the index.  [default: the name of its folder]")
@click.option("--page", help="Address of aveyb-serve's page of the index (?index=NAME behind it) for citations.")
@MODE
@click.option("--model", help="Folder or name of the model.  [default: where it was at the build]")
def main(
    directory: Path,
    http: bool,
    host: str,
    port: int | None,
    no_key: bool,
    name: str | None,
    page: str | None,
    mode: str,
    model: str | None,
) -> None:
    """Give an agent the tools search and fetch over the index in DIRECTORY.

    They only read, and follow new versions of the index. Agents start this command themselves, and talk to it over
    standard input and output; with --http it is started once, for several.
    """
    if not http and (port is not None or host != "127.0.0.1" or no_key):
        raise click.UsageError("--host, --port and --no-key: only with --http")
    if http and host not in LOOPBACK and not no_key:
        raise ConfigError(
            f"--host {host}: other machines can reach it, and there are no keys; give --no-key to allow that"
        )
    from aveyb_retrieval.integrations.mcp import make_server

    server = make_server(directory, model=model, name=name, page=page, mode=mode)
    if http:
        click.echo(f"{directory}: http://{host}:{port or PORT}/mcp", err=True)
        server.run("streamable-http", host=host, port=port or PORT)
    else:
        server.run("stdio")


if __name__ == "__main__":
    main()
