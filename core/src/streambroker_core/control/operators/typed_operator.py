"""Operators with a method for each type of control tuple, called with payload objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from streambroker_core.control.operators.operator import Operator
from streambroker_core.control.tuples import ControlError, ControlTuple, UndeliverableError
from streambroker_core.control.tuples.payloads import Payloads, type_name

Handler = Callable[[Any, str, Any, ControlTuple], bool]
_F = TypeVar("_F", bound=Callable[..., bool])
_MARK = "_handled_payload"


def handles(payload: type) -> Callable[[_F], _F]:
    """Mark a method of a TypedOperator as the handler of a payload type.

    The method is called with port, payload and control tuple, and returns like ``process_control``.
    """

    def mark(method: _F) -> _F:
        setattr(method, _MARK, payload)
        return method

    return mark


class TypedOperator(Operator):
    """An operator that handles control tuples by type.

    Attributes:
        strict: a tuple of a type without a method is an error; otherwise it goes on.
    """

    strict: ClassVar[bool] = False
    _handlers: ClassVar[Mapping[str, Handler]] = {}
    _payloads: ClassVar[Payloads] = Payloads(())

    def __init_subclass__(cls) -> None:
        """Collect the methods that handle a type.

        Raises:
            ControlError: two methods of one class handle one type, or a type is neither a dataclass
                nor one with a codec.
        """
        super().__init_subclass__()
        handlers: dict[str, Handler] = {}
        payload_types: dict[str, type] = {}
        for base in reversed(cls.__mro__):
            seen = set[str]()
            for method in vars(base).values():
                payload = getattr(method, _MARK, None)
                if payload is None:
                    continue
                name = type_name(payload)
                if name in seen:
                    raise ControlError(f"{base.__qualname__} has two methods for {name}.")
                seen.add(name)
                handlers[name], payload_types[name] = method, payload
        cls._handlers, cls._payloads = handlers, Payloads(payload_types.values(), cls.codecs)

    def process_control(self, port: str, control: ControlTuple) -> bool:
        """Call the method for the type of a tuple.

        Raises:
            UndeliverableError: the payload does not have its type's fields, or there is no method
                and the operator is strict.
        """
        handler = self._handlers.get(control.type)
        if handler is None and not self.strict:
            return False
        try:
            payload = self._payloads.decode(control)
        except ControlError as error:
            raise UndeliverableError(str(error)) from error
        return handler is not None and handler(self, port, payload, control)
