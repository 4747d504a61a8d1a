"""Makes reference cases with PyTorch. See ../generate.py for the commands and ../README.md for the format.

There is one module for each suite: `ops`, `layers`, `losses`, `optimizers`, `training`. Each has a table
`CASES` of what is made and, decorated with `computes`, how PyTorch computes it. `random_cases` makes cases that
are in no table.
"""
