"""One simulator family per file; nothing is imported here."""
