"""``rankfall agent``: reads one node's kernel log and reports faults on its Node.

The agent has no right to taint. Never import aiohttp here: the agent needs about 50 MiB on every node.
"""
