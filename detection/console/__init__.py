"""The console: server-rendered pages. They read through selectors and write through services."""
