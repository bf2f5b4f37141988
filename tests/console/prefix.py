"""A proxy that offers a broker below a path."""

from __future__ import annotations

import http.client
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

_OWN = {"connection", "transfer-encoding", "content-length"}


class Prefix:
    """Forwards ``PREFIX/path`` to ``path`` of the broker, and nothing else."""

    def __init__(self, broker: str, prefix: str) -> None:
        host = urlsplit(broker).netloc

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def forward(self) -> None:
                if not self.path.startswith(f"{prefix}/"):
                    self.send_error(404)
                    return
                connection = http.client.HTTPConnection(host)
                length = int(self.headers.get("Content-Length") or 0)
                sent = {name: value for name, value in self.headers.items() if name != "Host"}
                path = self.path[len(prefix) :]
                connection.request(self.command, path, self.rfile.read(length), sent)
                answer = connection.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _OWN:
                        self.send_header(name, value)
                self.end_headers()
                try:
                    while chunk := answer.read1(65_536):
                        self.wfile.write(chunk)
                        self.wfile.flush()
                except (OSError, http.client.HTTPException):
                    pass
                finally:
                    connection.close()

            do_GET = do_PUT = do_POST = forward  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_port}{prefix}"

    def __enter__(self) -> Prefix:
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
