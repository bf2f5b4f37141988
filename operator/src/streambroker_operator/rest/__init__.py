"""The broker's REST interface under ``/api/subscriptions``."""

from streambroker_operator.rest.app import create_app

__all__ = ["create_app"]
