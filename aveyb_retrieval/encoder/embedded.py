"""The models that come with the package."""

from __future__ import annotations

from pathlib import Path

MODELS = Path(__file__).parent.parent / "models"
EMBEDDED = ("aveyb-small-en", "aveyb-mini-en")  # the default first; an older one stays for indexes made with it
DEFAULT_MODEL = MODELS / EMBEDDED[0]
