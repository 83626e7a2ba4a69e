"""OpenTelemetry: reads what agents export over OTLP into events of the API. Pure, like all readers.

`decoding` turns a request into plain spans and records, `attributes` looks up what instrumentations name differently,
`spans` reads single spans, `logs` the log records of coding agents, and `conversations` puts a request in order.
"""
