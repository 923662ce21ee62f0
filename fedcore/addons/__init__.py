"""Add-ons: one file each; the file's name is the add-on's name in ``params.yaml``."""
