"""Alerts: the outbox, routing, silences, destinations, notifications and their delivery."""
