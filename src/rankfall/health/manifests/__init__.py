"""The objects that guard a cluster, as data: of the agents, of the controller, all together."""
