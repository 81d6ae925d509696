"""FAISS's wheel for GPUs, on a machine without one, answers as faiss-cpu does: `make
test-gpu-wheel`.

Both wheels are the module `faiss`: the one for GPUs is installed, faiss-cpu lies in a folder that a
process of its own finds first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from aveyb_retrieval.indexes.nearest.due_files import make_tier
from aveyb_retrieval.indexes.nearest.faiss_file import FaissSearcher
from aveyb_retrieval.indexes.nearest.tiers import Memory, VectorSearcher
from tests.indexes.nearest.fake import FakeVectors

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.store.manifest import Tier

OTHER = os.environ.get("AVEYB_FAISS_CPU", "")
ROOT = Path(__file__).parents[3]
COUNT, DIM = 4000, 32
FACTORIES = ("auto", "Flat", "SQ8", "HNSW16", "IVF16,Flat", "IVF16,SQ8", "IVF16,PQ4x4")
STORED = FakeVectors.random("document", COUNT, DIM)

pytestmark = pytest.mark.skipif(
    not OTHER, reason="`make test-gpu-wheel` runs it, with both wheels of FAISS"
)


def made(root: Path, factory: str) -> Tier:
    return make_tier(root, f"faiss/{factory}", "document", 0, COUNT, STORED, COUNT, factory)[0]


def answers(root: Path, tier: Tier) -> list[tuple[np.ndarray, np.ndarray]]:
    """What a file's codes find, and what a search finds: of all, and of a third."""
    alone, queries = FaissSearcher.open(root, tier), STORED.rows[:50] + 0.1 * STORED.rows[50:100]
    nearest = VectorSearcher([alone], Memory(STORED.dim), alone.tier.stop, STORED, alone.live)
    third = STORED.numbers[::3]
    return [
        alone.candidates(queries, 10),
        nearest.search(queries, 10),
        nearest.search(queries, 10, third),
    ]


def by_cpu_wheel(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([OTHER, str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that faiss-cpu wrote, and what it found in them."""
    root = tmp_path_factory.mktemp("faiss-cpu")
    done = by_cpu_wheel("-m", "tests.indexes.nearest.test_wheels", str(root))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(Path(OTHER).resolve() / "faiss" / "__init__.py"), "0"]
    return root


def test_the_wheel_for_gpus_is_what_runs_here_and_finds_none() -> None:
    import faiss

    assert hasattr(faiss, "StandardGpuResources")
    assert faiss.get_num_gpus() == 0


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_file_of_one_wheel_is_a_file_of_the_other(
    written: Path, tmp_path: Path, factory: str
) -> None:
    """Sums of the two differ in their last bit, so scores do, and centroids; what is found does
    not.
    """
    tier = made(tmp_path, factory)
    expected = np.load(written / f"{factory}.npz")
    for root, alike in ((written, 1.0), (tmp_path, 0.98)):
        for place, (scores, numbers) in enumerate(answers(root, tier)):
            kept = numbers[..., None] == expected[f"numbers_{place}"][:, None]
            assert kept.any(axis=2).mean() >= alike
            there = np.broadcast_to(expected[f"scores_{place}"][:, None], kept.shape)[kept]
            # codes of other centroids give other scores; those of vectors are true
            if root == written or place:
                assert np.allclose(scores[kept.any(axis=2)], there, atol=1e-5)


def test_both_wheels_in_one_environment_are_one_clear_line() -> None:
    assert find_spec("faiss") is not None
    code = (
        "from aveyb_retrieval.errors import BackendError; from aveyb_retrieval.indexes.nearest"
        " import faiss_file as f\ntry: f.import_faiss()\nexcept BackendError as error: print(error)"
    )
    line = by_cpu_wheel("-c", code).stdout.strip()
    assert line.startswith("faiss-cpu ")
    assert " and faiss-gpu" in line  # or faiss-gpu-cuvs
    assert "\n" not in line


def main() -> None:
    import faiss

    root = Path(sys.argv[1])
    print(faiss.__file__, int(hasattr(faiss, "StandardGpuResources")))
    for factory in FACTORIES:
        found = answers(root, made(root, factory))
        arrays = {
            f"{name}_{i}": part[j]
            for i, part in enumerate(found)
            for j, name in enumerate(("scores", "numbers"))
        }
        np.savez(root / f"{factory}.npz", **arrays)


if __name__ == "__main__":
    main()
