"""The expression language of subscriptions and filters."""
