"""Packages with the interfaces of other packages, so that programs switch by one import."""
