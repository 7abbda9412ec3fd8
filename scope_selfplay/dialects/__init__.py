"""How each model family writes a turn: `families` has a block each, `turns` what all of them share.

Pure, and safe on any text: reading is linear, what cannot be read is None.
"""
