"""``/metrics``, ``/live``, ``/ready`` and ``/startup`` over HTTP, in a thread of their own.

The address is loopback unless a person says otherwise: there is no password, and whoever reaches the port reads.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from deepinfer_core.errors import ConfigError

Check = Callable[[], list[str]]
"""What is wrong; empty if nothing is."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"
TIMEOUT_S = 10.0
"""A client that sends nothing for so long is left alone."""


class Server:
    """Listens from the moment it is made.

    :param metrics: The text of ``/metrics``.
    :param checks: Path such as ``/ready`` -> its check: status 200 if nothing is wrong, else 503, with a JSON object.
    :raises ConfigError: the address is not loopback and ``is_public`` is not set, is none, or is taken.
    """

    def __init__(
        self, host: str, port: int, metrics: Callable[[], bytes], checks: Mapping[str, Check], *, is_public: bool
    ) -> None:
        family, address = _address(host, port, is_public=is_public)

        class Handler(BaseHTTPRequestHandler):
            timeout = TIMEOUT_S

            def do_GET(self) -> None:
                self._look_up(has_body=True)

            def do_HEAD(self) -> None:
                """What a probe that only wants to know whether somebody answers sends."""
                self._look_up(has_body=False)

            def _look_up(self, *, has_body: bool) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    self._answer(200, TEXT, metrics(), has_body)
                elif path in checks:
                    wrong = checks[path]()
                    body = json.dumps({"ok": not wrong, "wrong": wrong}) + "\n"
                    self._answer(503 if wrong else 200, "application/json", body.encode(), has_body)
                else:
                    there = ", ".join(("/metrics", *checks))
                    self._answer(404, "text/plain; charset=utf-8", f"there are: {there}\n".encode(), has_body)

            def log_message(self, format: str, *args: object) -> None:
                """Standard error is for people; a scraper asks every few seconds."""

            def _answer(self, status: int, kind: str, body: bytes, has_body: bool) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if has_body:
                    self.wfile.write(body)

        class Listener(ThreadingHTTPServer):
            address_family = family
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that leaves in the middle is no fault of the engine."""

        try:
            self._listener = Listener(address, Handler)
        except OSError as err:
            raise ConfigError(
                f"cannot listen on {host}:{port}",
                reason=err.strerror or str(err),
                remedy="choose another --metrics-port, or 0 for one that is free",
                details={"field": "observe.metrics_port", "host": host, "port": port},
            ) from err
        self.port: int = self._listener.server_address[1]
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.1}, name="deepinfer-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._thread.is_alive():
            self._listener.shutdown()
            self._thread.join()
        self._listener.server_close()


def _address(host: str, port: int, *, is_public: bool) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The family and address of ``host``, which may be a name."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as err:
        raise ConfigError(
            f"{host!r} is no address",
            reason=err.strerror or str(err),
            remedy="leave --metrics-host out, or give an address of this machine",
            details={"field": "observe.metrics_host", "value": host},
        ) from err
    family, _, _, _, address = found[0]
    name = str(address[0])
    if not is_public and not ipaddress.ip_address(name.partition("%")[0]).is_loopback:
        raise ConfigError(
            f"{host} can be reached by other machines",
            reason="metrics and health are served without a password",
            remedy="leave --metrics-host out, or add --metrics-public",
            details={"field": "observe.metrics_host", "value": host},
        )
    return family, (name, port)
