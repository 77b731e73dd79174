"""Evidence of the platform: pods, Events, nodes and reasons (reasons.csv).

Reads files only and sends no request.
"""
