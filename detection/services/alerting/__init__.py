"""Alerts: the outbox, routes, silences, destinations and delivery."""
