"""Objects of an installation as data: agent, controller, rights, admission policies.

Reads only the settings file; sends no request.
"""
