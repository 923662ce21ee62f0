"""Metrics: accuracy and its spread over clients, and the statistics of a comparison."""
