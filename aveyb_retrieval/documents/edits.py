"""What people set in the metadata of a document, kept apart from what was read with its text."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(frozen=True)
class Edits:
    """Changes of a document's metadata that outlive its text: `merged` of them is what a search sees.

    Attributes:
        read: The metadata that came with the document.
        fields: Fields that were set, with their values.
        removed: Fields that were taken away.
    """

    read: dict[str, Any]
    fields: dict[str, Any] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fields or self.removed)

    @property
    def merged(self) -> dict[str, Any]:
        """The metadata as they are searched and shown."""
        return {**{name: value for name, value in self.read.items() if name not in self.removed}, **self.fields}

    def cleared(self) -> Edits:
        """Return none of them."""
        return Edits(self.read)

    def changed(self, fields: Mapping[str, Any], removed: Collection[str]) -> Edits:
        """Return these edits with more of them."""
        kept = {name: value for name, value in self.fields.items() if name not in removed}
        gone = {*self.removed, *removed} - {*fields}
        return Edits(self.read, {**kept, **fields}, tuple(sorted(gone)))

    def over(self, read: dict[str, Any], *, of_file: bool) -> Edits:
        """Return these edits over metadata that came later.

        What a file says again was not meant against an edit, so the edit stays. A document of a program names its
        fields on purpose: these count from now on, and the other edits stay.
        """
        named = set() if of_file else {*read}
        fields = {name: value for name, value in self.fields.items() if name not in named}
        return Edits(read, fields, tuple(name for name in self.removed if name not in named))

    def to_json(self) -> str | None:
        """Return them as they are stored; None where there are none."""
        if not self:
            return None
        body = {"read": self.read, "fields": self.fields, "removed": self.removed}
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Edits:
        """Read what `to_json` wrote.

        Raises:
            ValueError, RecursionError: it is something else.
        """
        match json.loads(text):
            case {"read": dict(read), "fields": dict(fields), "removed": list(removed)}:
                if all(isinstance(name, str) for name in removed):
                    return cls(read, fields, tuple(removed))
        raise ValueError("not the edits of a document's metadata")
