"""The command lines: `aveyb-index`, `aveyb-eval`, `aveyb-train`; click commands without logic of
their own.
"""
