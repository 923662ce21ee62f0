"""Data: sources (name -> arrays), partitions (arrays -> clients and splits), the federation the engine trains on."""
