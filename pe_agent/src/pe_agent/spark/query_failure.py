"""Cause of a failed query: one sentence, extracted from the long text that Spark writes around it.

Spark passes an error of a Python worker on as text, with its traceback, inside of the errors of the
task, the stage and the query. The cause is the last exception of the innermost of these texts.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

import streambroker_core
from pe_agent.transport.flight_errors import CODE_NOTE
from streambroker_core.errors import StreambrokerError

if TYPE_CHECKING:
    from typing import TypeVar

    _E = TypeVar("_E", bound=BaseException | None)

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.$]*)(?:: (?P<message>.*))?$")
_CONDITION = re.compile(r"^\[(?P<code>[A-Z][A-Z0-9_.]*)\] ?(?P<message>.*)$", re.DOTALL)
OPERATORS_CHANGED = "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"
KEY_SCHEMA_CHANGED = "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"
_OTHER_GROUPS = re.compile(
    r"Existing key_schema=StructType\((StructField\(key,StructType\()?"
    r"StructField\((?P<column>slot|bucket),IntegerType"
)
_END = re.compile(r"^(\s*$|\s+at |Caused by|Driver stacktrace|JVM stacktrace)")
_NOTED = re.compile(rf"^{CODE_NOTE}(?P<code>\w+)$", re.MULTILINE)
_OWN_PACKAGES = ("streambroker_core.", "pe_agent.")
_LIBRARIES = re.compile(
    r"^<|\.zip/|/(site-packages|dist-packages|lib/python3\.\d+|python/pyspark)/"
)
_PACKAGES = tuple(
    f"{folder}/"
    for folder in (
        Path(__file__).parents[1],
        *(Path(str(package.__file__)).parent for package in (pyspark, streambroker_core)),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a query has failed.

    Attributes:
        type: class of the exception, without its module.
        code: error code of streambroker, as in docs/errors.md, or Spark's error condition; None
            for an exception of other code.
        message: message of the exception.
        place: the last line of the user's files in the traceback, ``file:line, in function``; None
            if there is none.
    """

    type: str
    code: str | None
    message: str
    place: str | None = None

    def __str__(self) -> str:
        where = "" if self.place is None else f" ({self.place})"
        return f"{self.code or self.type}: {self.message}{where}"


def cause(of: StreamingQuery | BaseException) -> Failure | None:
    """Return why a query has failed.

    Args:
        of: the query, or the exception that it has raised.

    Returns:
        The cause; None if the query runs or has ended without an error.
    """
    error = of if isinstance(of, BaseException) else of.exception()
    if error is None:
        return None
    texts = list(_error_texts(error))
    innermost = next((text for text in reversed(texts) if _TRACEBACK in text), texts[-1])
    return parse_cause(innermost)


def parse_cause(text: str) -> Failure:
    """Return the cause named in the text of an error."""
    _, marker, traceback = text.rpartition(_TRACEBACK)
    if not marker:
        return _parse_spark_cause(text)
    place: str | None = None
    lines = iter(traceback.splitlines()[1:])
    for line in lines:
        frame = _FRAME.match(line)
        if frame and not _is_library(frame["file"]):
            place = f"{frame['file']}:{frame['line']}, in {frame['name']}"
        error = _ERROR.match(line)
        if error:
            message = [error["message"] or "", *_message_lines(lines)]
            noted = _NOTED.search(traceback)
            return Failure(
                type=error["type"].rpartition(".")[2],
                code=_error_code(error["type"], noted["code"] if noted else ""),
                message="\n".join(message).rstrip(),
                place=place,
            )
    return _parse_spark_cause(text)


def _is_library(file: str) -> bool:
    return file.startswith(_PACKAGES) or _LIBRARIES.search(file) is not None


def _message_lines(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if _END.match(line) or _NOTED.match(line):
            return
        yield line


def _parse_spark_cause(text: str) -> Failure:
    """Return the cause in an error of the JVM; the innermost, if there are several."""
    innermost = text.rpartition("Caused by: ")[2].strip()
    first, *more = innermost.splitlines() or [""]
    error = _ERROR.match(first)
    named = error is not None and error["message"] is not None
    kind, message = (error["type"], error["message"]) if error and named else ("Exception", first)
    message = "\n".join([message, *_message_lines(iter(more))]).rstrip()
    condition = _CONDITION.match(message)
    code = condition["code"] if condition else None
    return Failure(
        type=kind.rpartition(".")[2],
        code=code,
        message=f"{condition['message'] if condition else message}{_remedy(code, message)}",
    )


def _remedy(code: str | None, message: str) -> str:
    """Return what to do about an error that Spark reports in terms of its state store."""
    if code == OPERATORS_CHANGED and "transformWithStateInPandas" in message:
        return (
            "\nThe checkpoint began with other operators, or other ones shared a hop: set"
            " stays_in_bucket in the same operators as then, or start a new checkpoint."
        )
    groups = _OTHER_GROUPS.search(message) if code == KEY_SCHEMA_CHANGED else None
    if groups is None:
        return ""
    began = f"{groups['column']}s"
    return (
        f"\nThe checkpoint began with another grouping of buckets: pass"
        f' OperatorOptions(groups="{began}") to go on with it, or start a new checkpoint.'
    )


def _error_texts(error: BaseException) -> Iterator[str]:
    """Yield the texts of an exception of PySpark and of its causes, the innermost last."""
    current: Any = error
    while current is not None:
        yield str(getattr(current, "_desc", None) or f"{type(current).__name__}: {current}")
        current = getattr(current, "_cause", None)


def _error_code(class_name: str, noted: str) -> str | None:
    """Return the code of one of our errors: the noted one, or that of its class."""
    if not class_name.startswith(_OWN_PACKAGES):
        return None
    if noted:
        return noted
    module, _, name = class_name.rpartition(".")
    try:
        code = str(getattr(importlib.import_module(module), name).code)
    except (AttributeError, ImportError):
        return None
    return None if code == StreambrokerError.code else code


def prepend_cause(error: _E) -> _E:
    """Return the exception of PySpark with the cause at the beginning of its text."""
    for name in ("_desc", "_message"):  # of a classic session, of Spark Connect
        text = getattr(error, name, None)
        if error is not None and isinstance(text, str):
            cause_text = str(cause(error))
            if not text.startswith(cause_text):
                setattr(error, name, f"{cause_text}\n\n{text}")
            return error
    return error


class _CauseFirst:
    """The calls of a query that raise or return its failure, with the cause first."""

    def exception(self) -> StreamingQueryException | None:
        """Return why the query has failed; None if it has not."""
        query: Any = super()
        error: StreamingQueryException | None = query.exception()
        return prepend_cause(error)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's
        """Wait until the query has ended; raise StreamingQueryException if it has failed."""
        query: Any = super()
        try:
            ended: bool | None = query.awaitTermination(timeout)
        except StreamingQueryException as error:
            raise prepend_cause(error)  # noqa: B904 - it is the same
        return ended

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        """Wait until all available data is processed; raise StreamingQueryException on failure."""
        query: Any = super()
        try:
            query.processAllAvailable()
        except StreamingQueryException as error:
            raise prepend_cause(error)  # noqa: B904 - it is the same


class Query(_CauseFirst, StreamingQuery):
    """A query whose errors begin with their cause."""


def with_cause_first(query: StreamingQuery) -> StreamingQuery:
    """Return the query as one whose errors begin with their cause."""
    if isinstance(query, StreamingQuery):
        return Query(query._jsq)
    return _connect_query(query)


def _connect_query(query: Any) -> Any:
    from pyspark.sql.connect.streaming.query import StreamingQuery as ConnectStreamingQuery

    class ConnectQuery(_CauseFirst, ConnectStreamingQuery):
        """A query of Spark Connect whose errors begin with their cause."""

    return ConnectQuery(query._session, query.id, query.runId, query.name)
