"""Methods: one file each; the file's name is the method's name in ``params.yaml``."""
