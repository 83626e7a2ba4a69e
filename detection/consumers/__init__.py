"""WebSockets of the live pages and the long poll of approvals, served by `live`."""
