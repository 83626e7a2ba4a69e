"""Ingestion: events and guard requests, redacted, numbered and stored."""
