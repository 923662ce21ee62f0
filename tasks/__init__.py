"""Pipeline steps: paths in, paths out."""
