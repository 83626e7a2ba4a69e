"""The protocols of model servers: readers and writers of their requests, responses and streams. No input or output."""
