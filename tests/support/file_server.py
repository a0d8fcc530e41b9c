"""A web server on this machine that can be told to misbehave."""

from __future__ import annotations

import contextlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """Serves ``files`` (path → bytes) with ranges, and keeps ``requests`` as (path, Range).

    Misbehaviour, each off unless set:
        ranges: False ignores Range and sends the whole file.
        stop_after: bytes after which a connection is cut off; None never.
        stall: keep the connection open there, and silent, in place of the cut.
        length: a Content-Length that is not the file's own; "" sends none.
        status: answer this to everything.
        shift: start a range this many bytes further than asked for.
        total: the size to name in Content-Range.
        silent: take the request and never answer.
    """

    def __init__(self, files):
        self.files = files
        self.requests = []
        self.ranges = True
        self.stop_after = None
        self.stall = False
        self.length = None
        self.status = None
        self.shift = 0
        self.total = None
        self.silent = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server._answer(self)

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._released = threading.Event()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self):
        self._released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _answer(self, handler):
        wanted = handler.headers.get("Range")
        self.requests.append((handler.path, wanted))
        if self.silent:
            self._released.wait()
            return
        if self.status is not None or handler.path not in self.files:
            handler.send_error(self.status or 404)
            return
        data = self.files[handler.path]
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.ranges else 0
        if wanted and self.ranges:
            if start >= len(data):
                handler.send_error(416)
                return
            start += self.shift
            handler.send_response(206)
            total = self.total or len(data)
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{total}")
        else:
            handler.send_response(200)
        if self.length != "":
            handler.send_header("Content-Length", str(self.length or len(data) - start))
        handler.end_headers()
        stop = len(data) if self.stop_after is None else min(len(data), start + self.stop_after)
        with contextlib.suppress(OSError):
            handler.wfile.write(data[start:stop])
        if self.stall:
            self._released.wait()
