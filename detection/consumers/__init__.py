"""Sockets of the live pages. They carry hints and never data; rows are fetched from the console by cursor."""
