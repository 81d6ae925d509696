"""The size of every extra: megabytes of the packages that it installs on top of the base.

    make .venv/.installed-dev && .venv/bin/pip install -c constraints.txt -e '.[pgvector,ray]'
    .venv/bin/python benchmarks/extras.py

Nothing is installed here. The packages of an extra are those that its requirements lead to in this
environment, through all requirements of theirs; the base are those of the package itself with
`cpu`. A package's size is that of the files which pip lists as its own, compiled ones included. An
extra that is not installed here as a whole is an error.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

RESULTS = Path(__file__).parent / "results" / "extras.json"
PACKAGE = "aveyb-retrieval"
BASE = ("cpu",)
EXTRAS = (
    "torch",
    "files",
    "ocr",
    "code",
    "server",
    "telemetry",
    "mcp",
    "langchain",
    "llama-index",
    "haystack",
    "pgvector",
    "ray",
    "eval",
    "bm25",
    "hub",
    "minilm",
    "train",
)


def packages(extras: tuple[str, ...]) -> set[str]:
    """Return the names of all packages that the package with some extras needs in this
    environment.
    """
    found: set[tuple[str, str]] = set()
    waiting = [(PACKAGE, extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for text in distribution(name).requires or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [
                    (canonicalize_name(needed.name), wanted) for wanted in ("", *needed.extras)
                ]
    return {name for name, _ in found} - {PACKAGE}


def size(name: str) -> int:
    """Return the bytes of an installed package."""
    paths = [Path(str(file.locate())) for file in distribution(name).files or []]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    unknown = set(EXTRAS) - set(distribution(PACKAGE).metadata.get_all("Provides-Extra") or [])
    if unknown:
        parser.error(
            f"{PACKAGE} as it is installed here has no extra {min(unknown)}: install it again"
        )
    base = packages(BASE)
    rows = []
    for extra in EXTRAS:
        try:
            added = sorted(packages((*BASE, extra)) - base)
        except PackageNotFoundError as missing:
            parser.error(f"the extra {extra} is not installed here: {missing}")
        bytes_of = {name: size(name) for name in added}
        largest = sorted(bytes_of, key=lambda name: -bytes_of[name])[:3]
        rows.append(
            {
                "extra": extra,
                "packages": len(added),
                "megabytes": round(sum(bytes_of.values()) / 1e6, 1),
                "largest": {name: round(bytes_of[name] / 1e6, 1) for name in largest},
            }
        )
        print(rows[-1])
    result = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "base": {"packages": len(base), "megabytes": round(sum(map(size, base)) / 1e6, 1)},
        "extras": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
