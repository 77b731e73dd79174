#!/bin/sh
# Power-cycles a node by IPMI. NOT tried on such hardware: read it, and try it on a node that may go down.
# Beside RANKFALL_NODE it needs, as files of a Secret that is mounted at /etc/bmc: NODE.host, user and password.
# The answer proves nothing; the controller waits for another boot id of the node.
set -eu
host=$(cat "/etc/bmc/$RANKFALL_NODE.host")
exec ipmitool -I lanplus -H "$host" -U "$(cat /etc/bmc/user)" -f /etc/bmc/password chassis power cycle
