"""The arithmetic of families of forms, written once for a writer that each language implements."""
