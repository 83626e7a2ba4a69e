"""The database and the disk that everything is stored on."""
