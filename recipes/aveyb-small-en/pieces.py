"""Cut a file into pieces of a limited size, and join them again.

python pieces.py cut RUN/model/model.safetensors OUT --mib 16
python pieces.py join OUT model.safetensors
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.files import atomic_writer, hash_file, write_atomic

LIST = "pieces.json"


def cut(file: Path, folder: Path, limit: int) -> list[Path]:
    """Write pieces of at most `limit` bytes and, last, their list with the hash of the whole; return the pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    with file.open("rb") as whole:
        while block := whole.read(limit):
            names.append(f"{file.name}.{len(names):03d}")
            write_atomic(folder / names[-1], block)
    write_atomic(folder / LIST, (json.dumps({"pieces": names, "sha256": hash_file(file).sha256}) + "\n").encode())
    return [folder / name for name in names]


def join(folder: Path, file: Path) -> None:
    """Write the whole file.

    Raises:
        InputError: the list or a piece is missing, or the whole is another file than the one that was cut.
    """
    missing = [LIST] if not (folder / LIST).is_file() else []
    listed = json.loads((folder / LIST).read_text(encoding="utf-8")) if not missing else {"pieces": []}
    missing += [name for name in listed["pieces"] if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder} lacks {', '.join(missing)}: copy all pieces and their list")
    with atomic_writer(file.with_name(file.name + ".joined")) as out:
        for name in listed["pieces"]:
            out.write((folder / name).read_bytes())
    joined = file.with_name(file.name + ".joined")
    found = hash_file(joined).sha256
    if found != listed["sha256"]:
        joined.unlink()
        raise InputError(f"{folder}: the pieces make SHA-256 {found}, not {listed['sha256']}: copy them again")
    joined.replace(file)


@click.group()
def main() -> None:
    """Cut a file into pieces, or join them."""


@main.command("cut")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--mib", type=click.FloatRange(min=0, min_open=True), default=16, show_default=True)
def cut_command(file: Path, folder: Path, mib: float) -> None:
    """Cut FILE into pieces in FOLDER."""
    for piece in cut(file, folder, int(mib * 2**20)):
        click.echo(f"{piece}: {piece.stat().st_size:,} bytes")


@main.command("join")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def join_command(folder: Path, file: Path) -> None:
    """Join the pieces in FOLDER into FILE."""
    join(folder, file)


if __name__ == "__main__":
    main()
