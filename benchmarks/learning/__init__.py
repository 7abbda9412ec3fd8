"""What self-play learns on the embedded world, over several seeds, beside two Challengers that stand still.

`results` (what is read off them) -> `page` (tables, curves and answers in words).
"""
