"""`aveyb-mcp`: an index as tools of an agent.

All logic lives in `aveyb_retrieval.integrations.mcp`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from aveyb_retrieval.cli.common import CONTEXT, INDEX, MODE, PATH, Command, Commands
from aveyb_retrieval.cli.help import examples
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.files import replace_in_place
from aveyb_retrieval.interpreter import python_program
from aveyb_retrieval.server.addresses import LOOPBACK

PORT = 8765
_DESKTOP = {"darwin": "~/Library/Application Support", "win32": "%APPDATA%"}.get(
    sys.platform, "~/.config"
)
CLIENTS = {  # the file of its settings, and where servers stand in it
    "claude": (f"{_DESKTOP}/Claude/claude_desktop_config.json", "mcpServers"),
    "cursor": ("~/.cursor/mcp.json", "mcpServers"),
    "vscode": (".vscode/mcp.json", "servers"),
}
NAME = click.option(
    "--name", help="Name of the index for agents.  [default: the name of its folder]"
)


class _ServeOrInstall(Commands):
    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Put `serve` before what names no command."""
        named = not args or args[0] in self.commands or args[0] in ("--help", "-h", "--version")
        return super().parse_args(context, args if named else ["serve", *args])


@click.group(cls=_ServeOrInstall, context_settings=CONTEXT)
@click.version_option(package_name="aveyb-retrieval")
def main() -> None:
    """Give an agent tools to search and read an index: `aveyb-mcp DIRECTORY`."""


@main.command(
    cls=Command, epilog=examples("aveyb-mcp my-index", "aveyb-mcp my-index --http --keys keys.json")
)
@click.argument("directory", type=INDEX)
@click.option(
    "--http",
    is_flag=True,
    help="Serve streamable HTTP at /mcp, instead of standard input and output.",
)
@click.option("--host", default="127.0.0.1", help="With --http: address to listen on.")
@click.option(
    "--port", type=click.IntRange(1, 65535), help=f"With --http: port.  [default: {PORT}]"
)
@click.option("--keys", "key_file", type=PATH, help="With --http: JSON file of keys.")
@click.option("--no-key", is_flag=True, help="With --http: let other machines ask without a key.")
@NAME
@click.option(
    "--page",
    help="Address of aveyb-serve's page of the index (with ?index=NAME) for citations.",
)
@MODE
@click.option("--model", help="Folder or name of the model.  [default: where it was at the build]")
def serve(
    directory: str | Path,
    http: bool,
    host: str,
    port: int | None,
    key_file: Path | None,
    no_key: bool,
    **options: Any,
) -> None:
    """Give an agent tools over the index in DIRECTORY; `serve` may be left out.

    They only read, and follow new versions of the index. Agents start this command themselves, and
    talk to it over standard input and output; with --http it is started once, for several. --keys
    is the file of `aveyb-serve`.
    """
    if not http and (port is not None or host != "127.0.0.1" or no_key or key_file):
        raise click.UsageError("--host, --port, --keys and --no-key: only with --http")
    if http and host not in LOOPBACK and not (no_key or key_file):
        raise ConfigError(
            f"--host {host}: other machines can reach it; give --keys, or --no-key to allow that"
        )
    from aveyb_retrieval.integrations.mcp import make_server, serve_http
    from aveyb_retrieval.server.keys import KeyFile

    keys = KeyFile(key_file) if key_file else None
    server = make_server(directory, keys=keys, **options)
    if http:
        click.echo(f"{directory}: http://{host}:{port or PORT}/mcp", err=True)
        serve_http(server, host, port or PORT)
    else:
        server.run("stdio")


@main.command(cls=Command, epilog=examples("aveyb-mcp install claude my-index"))
@click.argument("client", type=click.Choice(list(CLIENTS)))
@click.argument("directory", type=PATH)
@NAME
@click.option("--yes", is_flag=True, help="Write without asking.")
def install(client: str, directory: Path, name: str | None, yes: bool) -> None:
    """Add the index in DIRECTORY to the settings of CLIENT; the change is shown first, and no
    existing setting is replaced.
    """
    from aveyb_retrieval.indexes.store.place import read_manifest

    read_manifest(directory)  # says what is no index
    place, servers = CLIENTS[client]
    path, called = Path(os.path.expandvars(place)).expanduser(), name or directory.resolve().name
    ours = {
        "command": python_program(),
        "args": ["-m", "aveyb_retrieval.cli.mcp", str(directory.resolve())],
    }
    added = json.dumps({servers: {called: ours}}, indent=2, ensure_ascii=False)
    try:
        settings = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if is_new := called not in settings.setdefault(servers, {}):
            settings[servers][called] = ours
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{path}: cannot be read as settings ({error}); add this by hand: {added}"
        ) from None
    if not is_new:
        raise ConfigError(
            f"{path}: has a server {called!r} already; give --name, or remove that one"
        )
    click.echo(f"{path}:\n{added}")
    if yes or click.confirm("Add this?"):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        replace_in_place(path, text.encode())
        click.echo(f"written; restart {client}")


if __name__ == "__main__":
    main()
