"""The models that come with the package."""

from __future__ import annotations

from pathlib import Path

MODELS = Path(__file__).parent.parent / "models"
EMBEDDED = ("aveyb-small-en",)  # the default first
DEFAULT_MODEL = MODELS / EMBEDDED[0]
