"""The versions of a collection on a database server, and how one takes the place of another.

A publication makes a new version beside the one that readers see, and one switch shows it. The version before stays
until the next switch, for readers that are open.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import EngineError, IndexFormatError
from aveyb_retrieval.indexes.engines.collection import CollectionSettings
from aveyb_retrieval.indexes.engines.reader import Version

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from aveyb_retrieval.indexes.engines.collection import Address


class Versions(ABC):
    """The versions of one collection, by number; all that one is made of has names that begin with its `label`."""

    def __init__(self, address: Address) -> None:
        self.name = address.name
        self.prefix = f"aveyb_{address.collection}"

    def label(self, number: int) -> str:
        """What the names of a version begin with."""
        return f"{self.prefix}_{number}"

    def number(self, label: str) -> int:
        """Return the number of the version that readers see, by its label.

        Raises:
            IndexFormatError: it is not one of ours.
        """
        if not re.fullmatch(rf"{self.prefix}_[0-9]+", label):
            raise IndexFormatError(f"{self.name}: {label} is not a version of this collection; choose another name")
        return int(label.rpartition("_")[2])

    def visible(self) -> Version:
        """Return what readers see, ready to be read.

        Raises:
            IndexFormatError: nothing was published under this name, or not yet completely.
        """
        shown = self.shown()
        if shown is None:
            what = "is not there; publish it with `aveyb-index publish`"
            if self.all():
                what = "is published only in part; run the same `aveyb-index publish` again to continue"
            raise IndexFormatError(f"{self.name}: the collection {what}")
        found = self.settings(shown)
        if found is None:
            raise IndexFormatError(f"{self.name}: damaged: {self.label(shown)} has no settings; publish it again")
        return Version(shown, CollectionSettings.from_json(found, self.name), self)

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        """Return the version that an interrupted publication of the same documents has begun, or a new one."""
        there, shown = self.all(), self.shown() or 0
        for number in there:
            if number > shown:
                if not restart and self.settings(number) == settings.to_json():
                    return number
                self.drop(number)
        number = max([shown, *there]) + 1
        self.create(number, settings)
        return number

    def switch(self, number: int) -> None:
        """Let readers see a version, atomically, and remove those before the one that they saw until now.

        Raises:
            EngineError: a later one is there already.
        """
        before = self.shown() or 0
        if before > number:
            raise EngineError(f"{self.name}: another process has published meanwhile; publish again")
        self.show(number)
        for old in self.all():
            if old < number and old != before:
                self.drop(old)

    @abstractmethod
    def translated(self) -> AbstractContextManager[None]:
        """Turn errors of the server within into ours."""

    @abstractmethod
    def all(self) -> list[int]:
        """Every version that is there, ascending."""

    @abstractmethod
    def shown(self) -> int | None:
        """The version that readers see."""

    @abstractmethod
    def settings(self, number: int) -> Mapping[str, Any] | None:
        """The settings of a version, which is made ready to be read; None where it has none (yet)."""

    @abstractmethod
    def create(self, number: int, settings: CollectionSettings) -> None:
        """Make an empty version."""

    @abstractmethod
    def show(self, number: int) -> None:
        """Let readers see a version."""

    @abstractmethod
    def drop(self, number: int) -> None:
        """Remove a version; it may be left to the next publication."""
