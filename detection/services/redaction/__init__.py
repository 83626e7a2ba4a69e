"""Redaction: secrets are replaced by keyed marks before anything is stored."""
