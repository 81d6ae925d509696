"""A Milvus server from the wheel `milvus`, started as an ordinary user, for tests."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

USER = "nobody"  # who runs the server where the tests are run by root
PASSWORD = "Milvus"  # of the user root, as Milvus makes it
STARTING = 180  # seconds


def is_installed() -> bool:
    """Whether the wheel with the server is there, and pymilvus."""
    return all(importlib.util.find_spec(name) is not None for name in ("milvus", "pymilvus"))


@functools.cache
def _programs() -> Path:
    """A folder with the server's program, unpacked once."""
    from milvus import _initialize_data_files

    folder = Path(tempfile.mkdtemp(prefix="aveyb-milvus-program-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    _initialize_data_files(str(folder))
    return folder / "bin"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class MilvusServer:
    """One server on ports of its own; with `password` it asks for one."""

    def __init__(self, *, password: bool = False) -> None:
        from milvus import MilvusServerConfig

        self.folder = Path(tempfile.mkdtemp(prefix="aveyb-milvus-", dir="/tmp"))
        self._needs_password = password
        config = MilvusServerConfig(data_dir=str(self.folder))
        config.set("authorization_enabled", password)
        config.resolve()
        self.port = int(config.get("proxy_port"))
        self._configure_etcd(int(config.get("etcd_port")), free_port())
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam(USER)
            self._as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            for path in [self.folder, *self.folder.rglob("*")]:
                os.chown(path, account.pw_uid, account.pw_gid)
        atexit.register(self.close)
        self.start()

    def url(self, name: str, *, password: str = PASSWORD) -> str:
        """The URL of a collection; a server that is down is noticed after five seconds."""
        login = f"root:{password}@" if self._needs_password else ""
        return f"milvus://{login}127.0.0.1:{self.port}/{name}?timeout=5"

    def _configure_etcd(self, port: int, peer: int) -> None:
        """Give the server's own etcd ports of its own, too."""
        own, other = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
        (self.folder / "etcd.yaml").write_text(
            f"listen-client-urls: {own}\nadvertise-client-urls: {own}\nlisten-peer-urls: {other}\n"
            f"initial-advertise-peer-urls: {other}\ninitial-cluster: default={other}\n"
        )

    def start(self) -> None:
        """Start, and wait until it answers."""
        programs = _programs()
        environment = {
            **os.environ,
            "DEPLOY_MODE": "STANDALONE",
            "METRICS_PORT": str(free_port()),
            "ETCD_CONFIG_PATH": str(self.folder / "etcd.yaml"),
            "MILVUS_RUN_DIR": str(self.folder / "run"),
            "LD_LIBRARY_PATH": str(programs),
            "HOME": str(self.folder),
        }
        log = self.folder / "log"
        self._process = subprocess.Popen(
            [programs / "milvus", "run", "standalone"],
            stdout=log.open("a"), stderr=subprocess.STDOUT, cwd=self.folder, env=environment, **self._as,
        )  # fmt: skip
        import grpc
        from pymilvus import MilvusClient
        from pymilvus.exceptions import MilvusException

        until = time.monotonic() + STARTING
        token = f"root:{PASSWORD}" if self._needs_password else ""
        while time.monotonic() < until and self._process.poll() is None:
            try:
                client = MilvusClient(f"http://127.0.0.1:{self.port}", token=token, timeout=2, dedicated=True)
                client.list_collections(timeout=2)
                client.close()
                return
            except (MilvusException, grpc.RpcError):
                time.sleep(0.5)
        written = log.read_text()[-2000:]
        self.close()
        raise RuntimeError(f"the server did not start: {written}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End it at once, as a loss of power would (but for what the operating system has cached)."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Stop it and remove its files."""
        if self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
