"""Rechecks of strategies: the job, the workers that carry it out, and the dispatch to a runner. Run by `bootstrap`; it
reaches orders only through a kill, if enforcement is on.
"""
