"""Documents of node health for controller, agent, runs and command line.

Other writers may edit annotations, so readers refuse invalid ones with a reason.
"""
