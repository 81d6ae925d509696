"""Drive headless Chromium over its debugging pipe (Chrome DevTools Protocol): JSON messages that
end in a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
)
KEYS = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "Tab": 9, "/": 191}


class Browser:
    """A running Chromium. Use as a context manager."""

    def __init__(self, executable: str, profile: Path) -> None:
        commands, self._commands = os.pipe()  # Chromium reads its file 3 and writes its file 4
        self._events, events = os.pipe()

        def connect() -> None:
            os.dup2(commands, 3)
            os.dup2(events, 4)

        self._process = subprocess.Popen(
            [executable, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=connect,
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(events)
        self.inbox: queue.Queue[dict[str, Any]] = queue.Queue()
        self._number = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        rest = b""
        while part := os.read(self._events, 1 << 16):
            *whole, rest = (rest + part).split(b"\0")
            for message in whole:
                self.inbox.put(json.loads(message))

    def send(self, method: str, session: str | None = None, **params: Any) -> int:
        """Send a command; return its number."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        return self._number

    def open(self) -> Page:
        """Open an empty page."""
        return Page(self)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        os.close(self._commands)


class Page:
    """One page, and what happened on it.

    Attributes:
        console: Messages of the console, errors of scripts and of the network included.
        requests: Addresses that were asked for.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._session: str | None = None
        self.console: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = self._browser.send(method, self._session, **params)
        while True:
            message = self._browser.inbox.get(timeout=120)
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        kind = message.get("method")
        if kind == "Runtime.consoleAPICalled":
            self.console.append(
                f"{params['type']}: {[argument.get('value') for argument in params['args']]}"
            )
        elif kind == "Runtime.exceptionThrown":
            self.console.append(str(params["exceptionDetails"]))
        elif kind == "Log.entryAdded":
            self.console.append(f"{params['entry']['text']} ({params['entry'].get('url')})")
        elif kind == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript and return its value, of a promise what it resolves to."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def go(self, url: str) -> None:
        """Open an address."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def wait(self, condition: str, seconds: float = 60.0) -> None:
        """Wait until JavaScript is true."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, (
                condition,
                self.console,
                self.run("document.body.innerText"),
            )
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Click the middle of the first element that fits, with a mouse."""
        middle = "const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2];"
        find = (
            f"const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block:"
            " 'nearest'});"
        )
        x, y = self.run(f"(() => {{ {find} {middle} }})()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press a key."""
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def screen(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Set the size of the screen, the color scheme, and whether it is a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        if phone:
            features.append({"name": "hover", "value": "none"})
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> None:
        """Write what is seen as a PNG file."""
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )
