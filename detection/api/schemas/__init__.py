"""Wire schemas: bodies, query strings and responses, one module per resource. `common` has what they share."""
