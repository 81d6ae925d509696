"""A tiny vocabulary, a tiny model and a small text, written here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# without torch these cannot be imported, and the tests here are skipped one file after the other
if TYPE_CHECKING:
    from collections.abc import Callable

    from sentence_transformers import SentenceTransformer

    from aveyb_retrieval.encoder.config import AveyBConfig
    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer

RECIPES = Path(__file__).parents[2] / "recipes"
sys.path.insert(0, str(RECIPES / "aveyb-base-en"))

SUBJECTS = (
    "the heron",
    "a small boat",
    "the old miller",
    "our neighbour",
    "the red fox",
    "a tired clerk",
)
VERBS = ("watches", "crosses", "remembers", "repairs", "avoids", "paints")
OBJECTS = (
    "the river",
    "a wooden gate",
    "the winter barn",
    "an empty street",
    "the far hill",
    "a broken clock",
)
SENTENCES = [f"{s} {v} {o} before noon." for s in SUBJECTS for v in VERBS for o in OBJECTS]


@pytest.fixture(autouse=True)
def one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tokenizer() -> AveyBTokenizer:
    from aveyb_retrieval.training.texts import train_vocabulary

    return train_vocabulary(SENTENCES, 360, name="tiny")


@pytest.fixture
def tiny() -> AveyBConfig:
    return tiny_config()


def tiny_config(**changes: object) -> AveyBConfig:
    from aveyb_retrieval.encoder.config import AveyBConfig

    sizes = {
        "vocab_size": 360,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "split_size": 16,
        "num_retrieved": 1,
    }
    return AveyBConfig.mini(**{**sizes, **changes})


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(SENTENCES))
    return path


def make_student(
    folder: Path,
    tokenizer: AveyBTokenizer,
    *,
    seed: int = 0,
    prompts: dict[str, str] | None = None,
    **changes: object,
) -> SentenceTransformer:
    """A random model of a seed, saved in a folder as sentence-transformers reads it."""
    import torch

    from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
    from aveyb_retrieval.encoder.network.model import AveyBModel

    torch.manual_seed(seed)
    return sentence_transformer(
        AveyBModel(tiny_config(**changes)), tokenizer, folder, prompts=prompts
    )


def in_two_processes(function: Callable[[Path], None], folder: Path) -> None:
    """Calls a test module's function with `folder` in two processes that gloo connects, one thread
    each.
    """
    root = Path(__file__).parents[2]
    worker = folder / "worker.py"
    worker.write_text(
        "import sys, torch\nfrom pathlib import Path\n"
        f"from {function.__module__} import {function.__name__}\n"
        f"torch.set_num_threads(1)\n{function.__name__}(Path(sys.argv[1]))\n"
    )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            "--standalone",
            worker,
            folder,
        ],
        check=True,
        cwd=root,
        env=os.environ
        | {
            "PYTHONPATH": str(root),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
        timeout=600,
    )
