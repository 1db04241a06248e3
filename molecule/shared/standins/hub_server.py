#!/usr/bin/env python3
"""A hub on this machine: what the clients of Hugging Face and ModelScope ask, and nothing else.

Repositories are folders: <root>/<owner>/<name>/<commit>/<files>, and <root>/<owner>/<name>/refs.json names branches
and tags. Files ending in .safetensors or .bin are large ones: their checksum is a sha256 and they are reached
through a redirect, as on the real hub; all others have git's name of their content.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LARGE = (".safetensors", ".bin")


class Server(ThreadingHTTPServer):
    """The server, its faults and what was asked of it."""

    daemon_threads = True

    def __init__(self, root: Path, port: int = 0, token: str = "", rate: int = 0, address: str = "127.0.0.1") -> None:
        super().__init__((address, port), Handler)
        self.root, self.token, self.rate = root, token, rate
        self.corrupt: set[str] = set()  # names of files that are sent with a flipped byte
        self.broken = 0  # how many answers still break off in the middle
        self.busy = 0  # how many requests are still answered with 503
        self.sent: list[tuple[str, int, int]] = []  # name, first byte, bytes
        self.sending = 0  # how many answers are on their way

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that are killed; that is what they are there for."""

    @property
    def url(self) -> str:
        """The address for a client."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def fetched(self) -> set[str]:
        """Return the names of all files of which a byte was sent."""
        return {name for name, _, length in self.sent if length}

    def commit(self, repo: str, revision: str) -> str | None:
        """Return the commit that a revision means."""
        refs = json.loads((self.root / repo / "refs.json").read_text(encoding="utf-8"))
        if revision in refs:
            return str(refs[revision])
        whole = len(revision) == 40 and (self.root / repo / revision).is_dir()
        return revision if whole else None


def checksums(path: Path) -> tuple[int, str, str]:
    """Return size, sha256 and git's name of a content."""
    content = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return len(content), hashlib.sha256(content).hexdigest(), blob.hexdigest()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.answer()

    def do_GET(self) -> None:
        """Answer."""
        self.answer()

    def answer(self) -> None:
        """Find out who is asked: a hub's API, a file of it, what a redirect leads to, or ModelScope."""
        if self.server.busy > 0:
            self.server.busy -= 1
            return self.say(503, {"error": "busy"})
        address = urllib.parse.urlsplit(self.path)
        words = [urllib.parse.unquote(word) for word in address.path.split("/")[1:]]
        asked = {key: values[0] for key, values in urllib.parse.parse_qs(address.query).items()}
        if words[:3] == ["api", "v1", "models"]:
            return self.modelscope("/".join(words[3:5]), words[5:], asked)
        if words[0] == "cdn":
            return self.file(self.server.root.joinpath(*words[1:]))
        if words[:2] == ["api", "models"]:
            revision = words[5] if words[4:5] == ["revision"] else "main"
            return self.listing("/".join(words[2:4]), revision, asked)
        if words[2:3] == ["resolve"] and len(words) > 4:
            return self.resolve("/".join(words[:2]), words[3], "/".join(words[4:]))
        return self.say(404, {"error": "not found"})

    def say(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        """Send JSON."""
        content = json.dumps(body).encode()
        self.send_response(status)
        given = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def allowed(self, repo: str) -> bool:
        """Look at repository and token, as the hub does: to strangers a private one does not exist."""
        known = (self.server.root / repo / "refs.json").is_file()
        said = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if said and said != self.server.token:
            self.say(401, {"error": "Invalid credentials"}, {"X-Error-Message": "Invalid credentials"})
            return False
        if not known or said != self.server.token:
            self.say(404 if said else 401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return False
        return True

    def found(self, repo: str, revision: str) -> str | None:
        """Return the commit, or answer that there is none."""
        if not self.allowed(repo):
            return None
        commit = self.server.commit(repo, revision)
        if commit is None:
            self.say(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        return commit

    def files(self, repo: str, commit: str) -> dict[str, Path]:
        """Return the files of a commit."""
        folder = self.server.root / repo / commit
        return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}

    def listing(self, repo: str, revision: str, asked: dict[str, str]) -> None:
        """Answer GET /api/models/<repo>/revision/<revision>."""
        commit = self.found(repo, revision)
        if commit is None:
            return
        siblings = []
        for name, path in self.files(repo, commit).items():
            size, sha256, blob = checksums(path)
            entry: dict[str, Any] = {"rfilename": name}
            if asked.get("blobs", "").lower() == "true":
                entry |= {"size": size, "blobId": blob}
                if name.endswith(LARGE):
                    entry["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 134}
            siblings.append(entry)
        self.say(200, {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": [], "private": False})

    def resolve(self, repo: str, revision: str, name: str) -> None:
        """Answer HEAD and GET of /<repo>/resolve/<revision>/<file>."""
        commit = self.found(repo, revision)
        if commit is None:
            return
        path = self.files(repo, commit).get(name)
        if path is None:
            return self.say(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        size, sha256, blob = checksums(path)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{blob}"'}
        if not name.endswith(LARGE):
            return self.file(path, headers)
        headers |= {"X-Linked-Size": str(size), "X-Linked-Etag": f'"{sha256}"'}
        quoted = urllib.parse.quote(path.relative_to(self.server.root).as_posix())
        self.say(302, {}, {**headers, "Location": f"http://{self.headers['Host']}/cdn/{quoted}"})

    def file(self, path: Path, headers: dict[str, str] | None = None) -> None:
        """Send a file, or the rest of it."""
        if not path.is_file():
            return self.say(404, {"error": "not found"})
        content = bytearray(path.read_bytes())
        if path.name in self.server.corrupt:
            content[len(content) // 2] ^= 1
        size, begin, end = len(content), 0, len(content)
        asked = self.headers.get("Range", "").removeprefix("bytes=")
        if asked:
            first, _, last = asked.partition("-")
            begin, end = int(first), int(last) + 1 if last else size
        if begin >= size and asked:
            return self.say(416, {}, {"Content-Range": f"bytes */{size}"})
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        given = {"Content-Length": str(end - begin), "Accept-Ranges": "bytes", **(headers or {})}
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.body(path.name, bytes(content), begin, end)

    def body(self, name: str, content: bytes, begin: int, end: int) -> None:
        """Send bytes, as fast as the line is."""
        step, at, stop = 1 << 16, begin, end
        if self.server.broken and end - begin > step:
            self.server.broken -= 1
            stop = begin + (end - begin) // 2
        self.server.sending += 1
        try:
            while at < stop:
                chunk = content[at : min(at + step, stop)]
                self.wfile.write(chunk)
                at += len(chunk)
                if self.server.rate:
                    time.sleep(len(chunk) / self.server.rate)
        except OSError:
            self.close_connection = True
        finally:
            self.server.sent.append((name, begin, at - begin))
            self.server.sending -= 1
        if stop < end:
            self.close_connection = True

    def modelscope(self, repo: str, words: list[str], asked: dict[str, str]) -> None:
        """Answer ModelScope's list of files, and its files."""
        cookies = dict(part.strip().partition("=")[::2] for part in self.headers.get("Cookie", "").split(";"))
        said = cookies.get("m_session_id") or self.headers.get("Authorization", "").removeprefix("Bearer ")
        if said != self.server.token:
            return self.say(403 if said else 401, {"Code": 10990101007, "Message": "access denied", "Success": False})
        if not (self.server.root / repo / "refs.json").is_file():
            return self.say(404, {"Code": 10010205001, "Message": "model not exists", "Success": False})
        commit = self.server.commit(repo, asked.get("Revision", "master"))
        if commit is None:
            return self.say(404, {"Code": 10010205002, "Message": "revision not exists", "Success": False})
        if words == ["repo", "files"]:
            files = [
                {"Path": name, "Name": path.name, "Type": "blob", "Size": size, "Sha256": sha256, "Revision": commit}
                for name, path in self.files(repo, commit).items()
                for size, sha256, _ in [checksums(path)]
            ]
            return self.say(200, {"Code": 200, "Data": {"Files": files}, "Message": "success", "Success": True})
        path = self.files(repo, commit).get(asked.get("FilePath", ""))
        if words == ["repo"] and path:
            return self.file(path)
        return self.say(404, {"Code": 404, "Message": "not found", "Success": False})


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--rate", type=int, default=0, help="bytes per second; 0: as fast as it goes")
    given = parser.parse_args()
    token = given.token_file.read_text(encoding="utf-8").strip() if given.token_file else ""
    Server(given.root, given.port, token, given.rate, given.address).serve_forever()


if __name__ == "__main__":
    main()
