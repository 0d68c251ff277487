"""Problems that tests and benchmarks share, built from the library's objects, and comparisons with
`tests.oracles`.

`kinds` and `certificate` are the study of the certificate, and `tally` counts the faults on odd
input.
"""
