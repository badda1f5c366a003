"""Tables, verdicts and figures of results, and which results are committed."""
