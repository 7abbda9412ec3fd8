"""One run as data: every setting with its meaning, unit, paper symbol and default.

A section of the file is a module; `load` is the only reader. Defaults are the paper's (SCOPE, Table 9) unless a
field says otherwise. A run writes its resolved config beside its results and refuses to go on under another one
(`RunConfig.hash`).
"""
