"""Old methods of the PE, for one more release; each warns and keeps its old behaviour."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from pe_agent import functions
from pe_agent.job.applied import NotAppliedError
from pe_agent.job.context import Job
from pe_agent.job.send_control import Operators, SentControl, build_request, send_to_importers
from streambroker_core.control.tuples import ALL_TARGETS, Delivery, Target
from streambroker_core.control.tuples.payloads import default_delivery
from streambroker_core.deprecation import warn_deprecated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_F = TypeVar("_F", bound=Callable[..., Any])


class SentControlUntilApplied:
    """A sent control tuple whose ``wait_applied`` returns whether it was applied in time."""

    def __init__(self, sent: SentControl) -> None:
        self._sent, self.id, self.state = sent, sent.id, sent.state

    def wait_applied(self, timeout: float) -> bool:
        """Wait until all readers have finished a window with it; False after ``timeout`` seconds.

        Without readers it counts as not applied.
        """
        try:
            self._sent.wait_applied(timeout)
        except NotAppliedError:
            return False
        return True


def emit_control(
    pe: Job,
    port: str,
    payload: object,
    *,
    delivery: Delivery | str | None = None,
    at: int | None = None,
    target: Target = ALL_TARGETS,
    request: str | None = None,
) -> SentControlUntilApplied:
    """Deprecated: use ``pe.exports[port].send``."""
    warn_deprecated("PE.emit_control", "pe.exports[port].send")
    if delivery is None:
        delivery = default_delivery(payload, "pe.emit_control")
    tuple_ = build_request(payload, delivery, at, target)
    return SentControlUntilApplied(send_to_importers(pe.context, port, tuple_, request))


def send_control(pe: Job, payload: object, **settings: Any) -> SentControlUntilApplied:
    """Deprecated: use ``pe.operators.send``."""
    warn_deprecated("PE.send_control", "pe.operators.send")
    return SentControlUntilApplied(Operators(pe.context).send(payload, **settings))


def aligned(pe: Any, frame: DataFrame) -> Any:
    """Deprecated: use ``pe.stream``."""
    warn_deprecated("PE.aligned", "pe.stream")
    return pe.stream(frame)


def _method(function: _F) -> _F:
    name = function.__name__

    @wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        warn_deprecated(f"PE.{name}", f"streambroker.functions.{name}(pe, …)")
        return function(*args, **kwargs)

    return method  # type: ignore[return-value]


set_import_subscription = _method(functions.set_import_subscription)
set_import_filter = _method(functions.set_import_filter)
set_import_streams = _method(functions.set_import_streams)
set_export_properties = _method(functions.set_export_properties)
get_import_subscription = _method(functions.get_import_subscription)
get_import_filter = _method(functions.get_import_filter)
get_import_streams = _method(functions.get_import_streams)
get_export_properties = _method(functions.get_export_properties)
