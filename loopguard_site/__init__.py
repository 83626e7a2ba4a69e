"""The composition root: settings, addresses, processes. Wiring only, no behaviour of the product."""
