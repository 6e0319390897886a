"""The reference backend: the meaning of every plan, code by code."""
