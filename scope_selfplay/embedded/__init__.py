"""The embedded world: a fictional encyclopedia, its plain language, and the tiny policy that was warmed up on it.

`language` (words, sentences, tasks and answers, both ways) -> `world` (facts and articles). All pure; every fact of a
world can be read back from its articles, which is how the lexical judge knows it: nothing passes beside the text.
"""
