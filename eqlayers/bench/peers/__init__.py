"""Networks of other packages with random weights, and atoms for them: what acceleration is tested and measured on."""
