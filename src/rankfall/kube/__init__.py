"""A thin client of the Kubernetes API on aiohttp: credentials, REST, watches, exec, pod logs.

It knows the protocol and nothing of jobs. It refuses to guess: an answer it cannot read, a credential it cannot use and a server it cannot
reach are three different errors, and none of them is "not there".
"""
