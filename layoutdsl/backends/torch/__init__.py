"""The torch backend: on words where it can be, else code by code, in pieces; on any device. backend.py is its entry."""
