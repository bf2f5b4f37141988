"""The broker's REST interface under ``/api/subscriptions``: `app.create_app` builds it."""
