"""Encodings of mmpos in models of other packages, which are imported only when an adapter is."""
