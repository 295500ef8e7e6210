"""The types of examples, one file each, with the file formats of a single type."""
