"""What families of forms compute, said once against a writer that each language implements."""
