"""Clients for servers of tests, which speak HTTP without TLS."""

import ssl

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody. As `verify` of an `httpx` client, it saves reading the certificates of the world: 20 ms for each client."""
