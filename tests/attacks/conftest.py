"""The servers of `tests/server`."""

from tests.server.conftest import client, folder, handbook, model, open_client, server  # noqa: F401
