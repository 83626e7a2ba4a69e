"""Wire schemas: request bodies, query strings and responses, one module per resource. `common` holds what they share."""
