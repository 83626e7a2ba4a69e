"""What the entry points share: requests, forms, documents and files of lists."""
