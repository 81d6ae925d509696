"""The index that a server is attacked with."""

from tests.server.conftest import handbook  # noqa: F401
