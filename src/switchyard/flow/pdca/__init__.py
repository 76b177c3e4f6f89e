"""Rechecks of strategies: the job, the workers that carry it out, and the dispatch to a runner."""
