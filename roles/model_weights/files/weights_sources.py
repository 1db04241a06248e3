"""Sources of weights. Each source lists its files with their checksums, and fetches one of them."""

from __future__ import annotations

import contextlib
import fnmatch
import http.client
import os
import re
import shutil
import subprocess
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, getproxies_environment, proxy_bypass_environment, urlopen

from weights_common import (
    CHUNK,
    FULL,
    Log,
    WeightsError,
    files_below,
    inside,
    links_out,
    read_manifest,
    safe_name,
)
from weights_names import MANIFEST, WORK

# Hosts to which an unencrypted connection does not leak a token.
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Messages of git and git-lfs for it. The bare number may be part of a name, or count bytes.
DENIED = re.compile(r"\b(?:error:|status:?|http(?:/[\d.]+)?) 40[13]\b")
PING_S = 30.0  # seconds between two signs of life for the source host


class Item(NamedTuple):
    """A file of a source: its size in bytes, and its sha256 or git's name of its content, if known."""

    name: str
    size: int
    sha256: str | None = None
    blob: str | None = None


class RetryableError(Exception):
    """An error that a retry may avoid: a lost connection, a busy server."""


def wanted(name: str, source: dict[str, Any]) -> bool:
    """Return whether the user wants a file."""
    include, exclude = source.get("include") or ["*"], source.get("exclude") or []
    if name.split("/", maxsplit=1)[0] in (".git", WORK) or name == MANIFEST:
        return False
    return any(fnmatch.fnmatch(name, p) for p in include) and not any(fnmatch.fnmatch(name, p) for p in exclude)


class Source:
    """Shared code of all sources."""

    workers = 4
    says = "the source lists"
    endpoint = ""  # of sources that use HTTP

    def __init__(self, job: dict[str, Any], partial: Path, log: Log) -> None:
        self.source, self.partial, self.log = job["source"], partial, log
        self.token = (job["secrets"] or [""])[0]
        self.label = f"{job['host']}: model {job['name']}"

    def files(self, revision: str | None) -> tuple[str | None, list[Item]]:
        """Return the resolved revision, and its files."""
        raise NotImplementedError

    def fetch(self, item: Item, part: Path) -> None:
        """Fetch a file, or the rest of it, to the path ``part``."""
        raise NotImplementedError

    def refused(self, status: int, what: str) -> WeightsError:
        """Return the sentence for a source that refuses access."""
        said = "with the token that was given" if self.token else "and no token was given"
        key = f"model_weights_tokens.{self.source['kind']}"
        return WeightsError(f"{self.label}: {what} refuses access ({status}) {said}; see {key}")

    def unreached(self, problem: Exception) -> RetryableError:
        """Return the error for a hub, or its proxy, that does not answer. A full disk is raised as it is."""
        if isinstance(problem, OSError) and problem.errno in FULL:
            raise problem
        there = urllib.parse.urlsplit(self.endpoint)
        name = there.hostname or ""
        proxy = "" if proxy_bypass_environment(name) else getproxies_environment().get(there.scheme, "")
        # Only the host: the address may contain a password.
        way = f" by the proxy on {urllib.parse.urlsplit(proxy).netloc.rpartition('@')[2]}" if proxy else ""
        return RetryableError(f"{there.scheme}://{name}{way}: {type(problem).__name__}: {problem}")

    def vanished(self, what: str) -> WeightsError:
        """Return the sentence for something that the source does not have, or no longer has."""
        return WeightsError(f"{self.label}: source: {what}; nothing on the host has been changed")


class Hub(Source):
    """A Hugging Face hub or a mirror of it, through huggingface_hub."""

    def __init__(self, job: dict[str, Any], partial: Path, log: Log) -> None:
        super().__init__(job, partial, log)
        # Read at import: mirrors do not support the chunk protocol, and nothing belongs below a home folder.
        os.environ.update(HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_DISABLE_TELEMETRY="1")
        os.environ.update({"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HF_HOME": str(partial / WORK / "hf")})
        import huggingface_hub

        self.endpoint = self.source.get("endpoint") or "https://huggingface.co"
        self.api = huggingface_hub.HfApi(endpoint=self.endpoint, token=self.token or False)
        self.revision = ""

    def files(self, revision: str | None) -> tuple[str | None, list[Item]]:
        """Query the API of the hub."""
        repo = self.source["repo"]
        info = self._try(lambda: self.api.model_info(repo, revision=revision, files_metadata=True, timeout=30))
        self.revision = info.sha or revision or "main"
        items = []
        for file in info.siblings or []:
            if wanted(file.rfilename, self.source):
                sha256 = file.lfs.sha256 if file.lfs else None
                size = int((file.lfs.size if file.lfs else file.size) or 0)
                items.append(Item(safe_name(file.rfilename), size, sha256, None if sha256 else file.blob_id))
        return self.revision, items

    def fetch(self, item: Item, part: Path) -> None:
        """Continue the download of a file."""
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.file_download import http_get

        # By default a killed client loses 10 MiB of every file in progress.
        constants.DOWNLOAD_CHUNK_SIZE = 1 << 20
        url = hf_hub_url(self.source["repo"], item.name, revision=self.revision, endpoint=self.endpoint)
        headers = {**self.api._build_hf_headers(), "Accept-Encoding": "identity"}
        expected = item.size if item.size <= constants.MAX_HTTP_DOWNLOAD_SIZE else None
        begin = part.stat().st_size if part.exists() else 0
        with part.open("ab") as handle:
            self._try(lambda: http_get(url, handle, resume_size=begin, headers=headers, expected_size=expected))

    def _try(self, call: Callable[[], Any]) -> Any:
        from huggingface_hub import errors

        repo = self.source["repo"]
        try:
            return call()
        except errors.GatedRepoError:
            raise self.refused(403, f"{repo} on {self.endpoint} (its terms must be accepted there)") from None
        except errors.RevisionNotFoundError:
            revision = self.revision or self.source.get("revision")
            raise self.vanished(f"{repo} on {self.endpoint} has no revision {revision}") from None
        except errors.HfHubHTTPError as problem:
            status = problem.response.status_code if problem.response is not None else 0
            if status in (401, 403):
                raise self.refused(status, f"{repo} on {self.endpoint}") from None
            if status in (404, 410):
                raise self.vanished(f"{self.endpoint} has no {repo}, or not this file of it ({status})") from None
            raise RetryableError(f"{self.endpoint}: status {status}") from None
        except Exception as problem:
            # The client's own network errors, whichever HTTP library it uses.
            raise self.unreached(problem) from None


class ModelScope(Source):
    """ModelScope, through its own client."""

    def __init__(self, job: dict[str, Any], partial: Path, log: Log) -> None:
        super().__init__(job, partial, log)
        work = partial / WORK / "modelscope"
        os.environ.update(MODELSCOPE_CACHE=str(work / "cache"), MODELSCOPE_HOME=str(work / "home"))
        # Only the user's number of tries: with five tries of the client for each, a full disk would be reported after a
        # minute.
        os.environ.update(MODELSCOPE_API_MAX_RETRIES="1", MODELSCOPE_DOWNLOAD_MAX_RETRIES="0")
        import modelscope_hub

        self.endpoint = self.source.get("endpoint") or "https://modelscope.cn"
        self.api = modelscope_hub.HubApi(endpoint=self.endpoint, token=self.token)
        self.revision = self.source.get("revision") or "master"

    def files(self, revision: str | None) -> tuple[str | None, list[Item]]:
        """Query the API of ModelScope."""
        self.revision = revision or self.revision
        listed = self._try(lambda: self.api.list_repo_files(self.source["repo"], "model", revision=self.revision))
        files = [file for file in listed if not file.is_dir and wanted(file.path, self.source)]
        return self.revision, [Item(safe_name(file.path), file.size, file.sha256 or None) for file in files]

    def fetch(self, item: Item, part: Path) -> None:
        """Let the client fetch the file. It continues an interrupted download itself."""
        folder = self.partial / WORK / "modelscope" / "files"
        given: dict[str, Any] = {"revision": self.revision, "local_dir": folder, "file_size": item.size}
        self._try(
            lambda: self.api.download_file(
                self.source["repo"], "model", item.name, expected_sha256=item.sha256, **given
            )
        )
        (folder / item.name).replace(part)

    def _try(self, call: Callable[[], Any]) -> Any:
        from modelscope_hub import errors

        repo = self.source["repo"]
        try:
            return call()
        except (errors.AuthenticationError, errors.PermissionDeniedError):
            raise self.refused(403, f"{repo} on {self.endpoint}") from None
        except errors.NotExistError:
            raise self.vanished(f"{self.endpoint} has no {repo} with a revision {self.revision}") from None
        except Exception as problem:
            raise self.unreached(problem) from None


class Git(Source):
    """A git repository whose large files are in git-lfs. No second copy of them stays in a .git folder."""

    workers = 1  # git-lfs itself fetches with several connections

    def __init__(self, job: dict[str, Any], partial: Path, log: Log) -> None:
        super().__init__(job, partial, log)
        self.folder, self.commit = partial / WORK / "git", ""
        self.pointers: set[str] = set()

    def files(self, revision: str | None) -> tuple[str | None, list[Item]]:
        """Fetch the history, and read the pointers to large files."""
        url = self.source["url"]
        if not (self.folder / "HEAD").exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.git("init", "--quiet", "--bare", ".")
        self.git("config", "remote.origin.url", url)
        self.git("fetch", "--quiet", "--force", "--tags", "origin", "+refs/heads/*:refs/heads/*", "+HEAD:refs/source")
        name = revision or "refs/source"
        try:
            self.commit = self.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
        except RetryableError:
            raise self.vanished(f"{url} has no revision {revision}") from None
        items = []
        for line in self.git("ls-tree", "-r", "-l", "-z", self.commit).decode().split("\0")[:-1]:
            about, _, path = line.partition("\t")
            _, kind, blob, size = about.split()
            if kind == "blob" and wanted(path, self.source):
                items.append(self.item(safe_name(path), blob, int(size)))
        return self.commit, items

    def item(self, name: str, blob: str, size: int) -> Item:
        """Return a file, or the target of its pointer."""
        if size < 1024:
            text = self.git("cat-file", "blob", blob).decode(errors="replace")
            lines = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
            if lines.get("version") == "https://git-lfs.github.com/spec/v1" and "oid" in lines:
                self.pointers.add(name)
                return Item(name, int(lines["size"]), lines["oid"].removeprefix("sha256:"))
        return Item(name, size, None, blob)

    def fetch(self, item: Item, part: Path) -> None:
        """Copy a file from the history, or let git-lfs fetch it and move it from its store."""
        if item.name not in self.pointers:
            part.write_bytes(self.git("cat-file", "blob", item.blob or ""))
            return
        oid = item.sha256 or ""
        stored = self.folder / "lfs" / "objects" / oid[:2] / oid[2:4] / oid
        pattern = "".join(f"\\{sign}" if sign in "*?[\\" else sign for sign in item.name).replace(",", "?")
        if not stored.exists():
            self.git("lfs", "fetch", f"--include={pattern}", "--exclude=", "origin", self.commit)
        if not stored.exists():
            raise RetryableError(f"git-lfs did not fetch {item.name}")
        # For a repository on the same disk git-lfs makes a link, so a change of one file would change the other.
        if stored.stat().st_nlink > 1:
            shutil.copyfile(stored, part)
            stored.unlink()
        else:
            stored.replace(part)

    def git(self, *words: str) -> bytes:
        """Run git with the token in its environment, which only root can read."""
        helper = '!f() { test "$1" = get && echo "username=oauth2" && echo "password=$GAUDI_SERVE_TOKEN"; }; f'
        settings = {"safe.directory": "*", "credential.helper": ""}  # the host's own helpers are not used
        if self.token and self.scope():
            settings[f"credential.{self.scope()}.helper"] = helper
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1"}
        environment |= {"GAUDI_SERVE_TOKEN": self.token, "GIT_CONFIG_COUNT": str(len(settings)), "LC_ALL": "C"}
        for number, (key, value) in enumerate(settings.items()):
            environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        done = subprocess.run(["git", *words], cwd=self.folder, env=environment, capture_output=True, check=False)
        if done.returncode == 0:
            return done.stdout
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        self.judge(said)
        raise RetryableError(f"git {words[0]}: {said.splitlines()[-1] if said else done.returncode}")

    def scope(self) -> str:
        """Return scheme, host and port that get the token; nothing for an unencrypted connection."""
        place = urllib.parse.urlsplit(self.source["url"])
        private = place.scheme == "https" or (place.scheme == "http" and place.hostname in LOOPBACK)
        return f"{place.scheme}://{place.netloc}" if private else ""

    def judge(self, said: str) -> None:
        """Raise an error that a retry cannot avoid."""
        small, url = said.lower(), self.source["url"]
        if "no space left" in small or "quota exceeded" in small or "file too large" in small:
            raise OSError(FULL[0], "No space left on device")
        if any(sign in small for sign in ("authentication failed", "could not read username")) or DENIED.search(small):
            raise self.refused(401, url)
        if "not found" in small or "does not appear to be a git repository" in small:
            raise self.vanished(f"{url}: {said.splitlines()[-1]}")


class Folder(Source):
    """A folder of this host: a local one, or a mounted one."""

    def files(self, revision: str | None) -> tuple[str | None, list[Item]]:
        """List it, with the checksums of its manifest if it has one."""
        folder = Path(self.source["path"])
        if not folder.is_dir():
            raise self.vanished(f"{folder} is not a folder on this host; is it mounted?")
        known = (read_manifest(folder) or {}).get("files", {})
        outside = links_out(folder)
        for name in outside:
            self.log(f"{name} is a link out of {folder}, and is ignored")
        items = []
        for name, path in files_below(folder).items():
            if wanted(name, self.source):
                items.append(Item(name, path.stat().st_size, known.get(name, {}).get("sha256")))
        if outside and not items:
            raise self.vanished(f"{folder} has only links to files elsewhere; name the folder that has the files")
        return None, items

    def fetch(self, item: Item, part: Path) -> None:
        """Copy a file, and continue an interrupted copy."""
        folder = Path(self.source["path"])
        if not inside(folder / item.name, folder):
            raise WeightsError(f"{self.label}: {item.name} is no longer in {folder}, or is now a link out of it")
        with (folder / item.name).open("rb") as origin, part.open("ab") as copy:
            origin.seek(copy.tell())
            shutil.copyfileobj(origin, copy, CHUNK)
            copy.flush()
            os.fsync(copy.fileno())


class File(Source):
    """One file at an address, with its checksum. ``endpoint`` is a mirror that has it below the name of its server."""

    workers = 1
    says = "its checksum requires"

    def __init__(self, job: dict[str, Any], partial: Path, log: Log) -> None:
        super().__init__(job, partial, log)
        url, mirror = self.source["url"], self.source.get("endpoint")
        self.endpoint = f"{mirror}/{url.partition('://')[2]}" if mirror else url

    def files(self, revision: str | None) -> tuple[str | None, list[Item]]:
        """Return the file, with the size that its server states."""
        with self.open("HEAD") as answer:
            size = int(answer.headers["Content-Length"])
        return None, [Item(safe_name(self.endpoint.rpartition("/")[2]), size, self.source["sha256"])]

    def fetch(self, item: Item, part: Path) -> None:
        """Fetch the file, or the rest of it. The checksum notices a server that ignores where it should begin."""
        begin = part.stat().st_size if part.exists() else 0
        try:
            with self.open("GET", {"Range": f"bytes={begin}-"} if begin else {}) as answer, part.open("ab") as handle:
                shutil.copyfileobj(answer, handle, CHUNK)
        except (OSError, http.client.HTTPException) as problem:
            raise self.unreached(problem) from None

    def open(self, method: str, headers: dict[str, str] | None = None) -> Any:
        """Return the server's answer."""
        try:
            return urlopen(Request(self.endpoint, method=method, headers=headers or {}), timeout=30)  # noqa: S310
        except HTTPError as problem:
            if problem.code in (404, 410):
                raise self.vanished(f"{self.endpoint} has no such file ({problem.code})") from None
            raise RetryableError(f"{self.endpoint}: status {problem.code}") from None
        except OSError as problem:
            raise self.unreached(problem) from None


class Neighbour(Source):
    """A source host, which has fetched the folder and serves it during the run."""

    timeout_s = 120.0

    def __init__(self, job: dict[str, Any], partial: Path, log: Log) -> None:
        super().__init__(job, partial, log)
        self.given = job["from"]
        self.host, self.place = self.given["host"], urllib.parse.urlsplit(self.given["url"])
        remedy = f"if this repeats, run weights.yml with model_weights_verify=full for {self.host}"
        self.says = f"{self.host} has recorded; {remedy}"

    def files(self, revision: str | None) -> tuple[str | None, list[Item]]:
        """Return the record of the source host, which the job contains, not the connection for the files."""
        files = self.given["files"]
        return self.given["revision"], [Item(safe_name(n), f["size"], f["sha256"]) for n, f in files.items()]

    def fetch(self, item: Item, part: Path) -> None:
        """Fetch a file, or the rest of it, over a direct connection without a proxy."""
        begin = part.stat().st_size if part.exists() else 0
        headers = {"Authorization": f"Bearer {self.token}", **({"Range": f"bytes={begin}-"} if begin else {})}
        line = http.client.HTTPConnection(self.place.hostname or "", self.place.port, timeout=self.timeout_s)
        try:
            line.request("GET", f"{self.place.path}/{urllib.parse.quote(item.name)}", headers=headers)
            answer = line.getresponse()
            self.judge(answer.status, item.name)
            with part.open("ab") as handle:
                shutil.copyfileobj(answer, handle, 1 << 18)  # lost after a kill
        except (OSError, http.client.HTTPException) as problem:
            if isinstance(problem, OSError) and problem.errno in FULL:
                raise
            raise RetryableError(f"{self.host}: {type(problem).__name__}: {problem}") from None
        finally:
            line.close()
        if part.stat().st_size < item.size:
            raise RetryableError(f"{self.host}: the connection was lost in {item.name}")

    def judge(self, status: int, name: str) -> None:
        """Raise an error that a retry cannot avoid."""
        if status in (403, 404):
            raise WeightsError(f"{self.label}: {self.host} now serves another run ({status}); fetched files stay")
        if status == 409:
            text = f"{name} differs from the record of {self.host}; run weights.yml for that host"
            raise WeightsError(f"{self.label}: {text}")
        if status not in (200, 206):
            raise RetryableError(f"{self.host}: status {status}")


@contextlib.contextmanager
def still_here(job: dict[str, Any]) -> Iterator[None]:
    """Send signs of life to the source host, as long as a job lives.

    Reading large folders and waiting for other runs can take hours.
    """
    end = threading.Event()
    thread = threading.Thread(target=_ping, args=(job, end), daemon=True)
    if job.get("from"):
        thread.start()
    try:
        yield
    finally:
        end.set()


def _ping(job: dict[str, Any], end: threading.Event) -> None:
    """Send a request without content. Errors of the connection appear in the fetching code."""
    place = urllib.parse.urlsplit(job["from"]["url"])
    headers = {"Authorization": f"Bearer {(job['secrets'] or [''])[0]}"}
    while True:
        line = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PING_S)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(line):
            line.request("GET", "/alive", headers=headers)
            line.getresponse().read()
        if end.wait(job.get("ping_s", PING_S)):
            return


KINDS: dict[str, type[Source]] = {"hub": Hub, "modelscope": ModelScope, "git": Git, "path": Folder, "file": File}
