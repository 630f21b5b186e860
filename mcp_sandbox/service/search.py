"""Search the files of a sandbox: by its own ripgrep where it has one, else here. Both give the same answer."""

import posixpath
from dataclasses import replace

from mcp_sandbox.core.errors import InvalidRequestError
from mcp_sandbox.core.files import FileKind, ReadRequest, StatRequest
from mcp_sandbox.core.provider import Sandbox
from mcp_sandbox.service.encodings import is_binary_to_search
from mcp_sandbox.service.file_errors import explain_path_error
from mcp_sandbox.service.files import FileReport, resolver_for
from mcp_sandbox.service.findings import Findings, SearchQuery
from mcp_sandbox.service.patterns import breaks_lines
from mcp_sandbox.service.reading import first_block
from mcp_sandbox.service.ripgrep import search_with_ripgrep
from mcp_sandbox.service.sandboxes import SandboxService
from mcp_sandbox.service.telling import using

__all__ = ["SearchService"]

_PATTERN_MAX_CHARS = 4_096
_CONTEXT_MAX_LINES = 100


class SearchService:
    """Content of files of any sandbox.

    Args:
        sandboxes: Finds the sandbox that a handle means.
        deadline_s: Seconds after which a search answers with what it has.
    """

    def __init__(self, sandboxes: SandboxService, *, deadline_s: float = 20.0) -> None:
        self._sandboxes = sandboxes
        self._deadline_s = deadline_s

    async def search(self, handle: str | None, query: SearchQuery) -> FileReport:
        """Search below a directory, or in a file, whose path is as a model gives it.

        Raises:
            InvalidRequestError: The pattern, the glob or the path is of no use.
        """
        query = _admitted(query)
        async with using(self._sandboxes, handle) as live:
            resolver = resolver_for(live)
            query = replace(query, path=resolver.resolve(query.path))
            try:
                text = await self._answer(live.sandbox, query)
            except OSError as error:
                raise await explain_path_error(
                    error, live.sandbox, query.path, doing="search", resolver=resolver
                ) from error
            return FileReport(text=text, notices=live.notices)

    async def _answer(self, sandbox: Sandbox, query: SearchQuery) -> str:
        info = await sandbox.stat(StatRequest(path=query.path))
        tree = info.kind is FileKind.DIRECTORY
        if tree:
            query = _rooted(query)
        elif await _is_binary(sandbox, query.path):
            findings = Findings(query)
            findings.note("this is a binary file, which is not searched")
            return findings.text()
        findings = Findings(query, tree=tree)
        name = None if tree else posixpath.basename(query.path)
        if sandbox.capabilities.runs_programs and await search_with_ripgrep(
            sandbox, query, findings, file_name=name, deadline_s=self._deadline_s
        ):
            return findings.text()
        # Importing `regex` takes 14 ms, which only this way of searching needs.
        from mcp_sandbox.service.walking import Walk

        findings = Findings(query, tree=tree)
        walk = Walk(sandbox, query, findings, deadline_s=self._deadline_s)
        await walk.search(file=not tree)
        return findings.text()


async def _is_binary(sandbox: Sandbox, path: str) -> bool:
    async with await sandbox.read(ReadRequest(path=path)) as reader:
        return is_binary_to_search((await first_block(reader)).data)


def _rooted(query: SearchQuery) -> SearchQuery:
    """Return the query with a glob that starts at its directory, also where it was given as an absolute path."""
    path = query.path.rstrip("/")
    glob = query.glob.removeprefix(f"{path}/")
    return replace(query, path=path or "/", glob=glob[1:] if glob.startswith("./") else glob)


def _admitted(query: SearchQuery) -> SearchQuery:
    problems = {
        "the pattern is empty": not query.pattern,
        f"the pattern has more than {_PATTERN_MAX_CHARS:,} characters": len(query.pattern) > _PATTERN_MAX_CHARS,
        "the pattern holds a NUL": "\0" in query.pattern,
        "the pattern holds half of a surrogate pair": not _is_unicode(query.pattern),
        "the glob holds what no file name can": "\0" in query.glob or not _is_unicode(query.glob),
        "before, after and context count lines": min(query.before, query.after) < 0,
        "head_limit is at least 1": query.head_limit is not None and query.head_limit < 1,
    }
    for why, is_so in problems.items():
        if is_so:
            raise InvalidRequestError("Nothing was searched", why=why, fix="Correct the arguments")
    query.filter.compiled()
    return replace(
        query,
        before=min(query.before, _CONTEXT_MAX_LINES),
        after=min(query.after, _CONTEXT_MAX_LINES),
        multiline=query.multiline or breaks_lines(query.pattern),
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
