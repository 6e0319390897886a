"""Slow, obvious readings of every format, kept apart from the library on purpose.

Each module turns stored bits into the float64 matrix they stand for. Nothing here
imports layoutdsl, shares its notation, or writes a format: a conversion is right when
its source and its target decode to the same matrix.

Matrices are always [n, k]: n output features, k input features. Words come as int32 or
uint8 arrays, 16-bit floats as their uint16 bits, fp8 and e8m0 as uint8 bytes.
"""
