"""Source documents: read, cut to size, sampled for stages; `world` makes those of the embedded run.

Reading is the only contact with the disk.
"""
