"""Networks of policies."""
