"""Published files for a run, each by its URLs and its SHA-256: a corpus, the vectors of an index.

`download` brings a file, whole or not at all; `corpus` makes it what a run reads. `cli` is `scope corpus` and
`scope index fetch`.
"""
