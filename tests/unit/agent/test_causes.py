"""The cause of a failed query, found in what Spark tells of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
from pyspark.errors.exceptions.base import PySparkException

from pe_agent.spark.query_failure import Failure, parse_cause, prepend_cause
from pe_agent.transport.flight_errors import AgentRefusedError
from streambroker import cause
from streambroker_core.control.tuples import ControlError
from streambroker_core.control.tuples.payloads import encode


def of_ours() -> None:
    encode(object())


def of_the_user() -> None:
    raise ValueError("a line\nand another")


def chained() -> None:
    try:
        of_the_user()
    except ValueError as error:
        raise KeyError("key") from error


def reported_by_spark(call: Callable[[], None]) -> str:
    """Return what Spark makes of an exception of a Python worker."""
    try:
        call()
    except Exception:
        text = traceback.format_exc()
    return (
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure:"
        " Lost task 0.0 in stage 1.0 (TID 1) (host executor driver):"
        f" org.apache.spark.api.python.PythonException: {text}\n"
        "\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)\n"
        "\tat java.base/java.lang.Thread.run(Thread.java:840)\n\nDriver stacktrace:"
    )


@pytest.mark.parametrize(
    ("call", "type_", "code", "message", "function"),
    [
        (of_ours, "ControlError", "ControlInvalid", "payload has to be a dataclass", "of_ours"),
        (of_the_user, "ValueError", None, "a line\nand another", "of_the_user"),
        (chained, "KeyError", None, "'key'", "chained"),
    ],
)
def test_the_cause_has_type_code_sentence_and_the_place_in_the_users_file(
    call: Callable[[], None], type_: str, code: str | None, message: str, function: str
) -> None:
    found = parse_cause(reported_by_spark(call))
    assert (found.type, found.code) == (type_, code)
    assert message in found.message
    assert "stacktrace" not in found.message
    assert found.place is not None
    assert found.place.startswith(f"{__file__}:")
    assert found.place.endswith(f", in {function}")
    assert str(found).startswith(f"{code or type_}: ")


def test_an_error_of_spark_itself_has_its_condition_and_no_place() -> None:
    text = (
        "org.apache.spark.SparkException: Job aborted due to stage failure\n\tat a.B(C.scala:1)\n"
        "Caused by: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'x'"
        " cannot be cast. SQLSTATE: 22018\n== DataFrame ==\n\tat org.apache.spark.X(Y.scala:2)\n"
    )
    found = parse_cause(text)
    assert found == Failure(
        type="SparkNumberFormatException",
        code="CAST_INVALID_INPUT",
        message="The value 'x' cannot be cast. SQLSTATE: 22018\n== DataFrame ==",
    )


def test_the_place_is_in_a_file_of_the_user_and_not_in_a_library() -> None:
    frames = [
        "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", "/usr/lib/python3.11/json/x.py",
        "/home/me/pyspark/job.py", "/venv/lib/python3.11/site-packages/numpy/core.py",
        encode.__code__.co_filename, "<frozen runpy>",
    ]  # fmt: skip
    lines = [f'  File "{file}", line 7, in f\n    code\n    ^^^^\n' for file in frames]
    text = f"Traceback (most recent call last):\n{''.join(lines)}KeyError: 'x'\n"
    assert parse_cause(text).place == "/home/me/pyspark/job.py:7, in f"


class Captured(PySparkException):
    """An exception as PySpark makes it of one of the JVM."""

    def __init__(self, desc: str, inner: Captured | None = None) -> None:
        super().__init__(desc)
        self._desc, self._cause = desc, inner

    def __str__(self) -> str:
        return self._desc


def test_of_an_exception_the_innermost_traceback_counts_and_its_text_then_begins_with_it() -> None:
    inner = Captured(reported_by_spark(of_ours))
    error = Captured("[STREAM_FAILED] Query terminated with exception: Job aborted", inner)
    found = cause(error)
    assert found is not None
    assert found.code == ControlError.code
    assert str(prepend_cause(error)).startswith(f"{found}\n\n[STREAM_FAILED]")
    assert str(prepend_cause(error)).count("[STREAM_FAILED]") == 1
    assert prepend_cause(None) is None


def test_where_there_is_no_traceback_the_innermost_error_is_the_cause() -> None:
    error = Captured("[STREAM_FAILED] no news", Captured("java.io.IOException: No space left"))
    assert str(cause(error)) == "IOException: No space left"
    assert str(cause(ValueError("it"))) == "ValueError: it"


def of_an_agent() -> None:
    raise AgentRefusedError("DataLoss", "epochs 0 to 3 are gone")


def test_an_error_that_an_agent_has_sent_has_the_agents_code() -> None:
    found = parse_cause(reported_by_spark(of_an_agent))
    assert (found.type, found.code) == ("AgentRefusedError", "DataLoss")
    assert found.message == "epochs 0 to 3 are gone"
