#!/bin/sh
# Power-cycles a node by its Redfish controller. NOT tried on such hardware: read it, and try it on a node that may go down.
# Beside RANKFALL_NODE it needs, as files of a Secret that is mounted at /etc/bmc: NODE.url (as https://bmc-n1/redfish/v1/Systems/1) and
# netrc (curl's, with the login). The answer proves nothing; the controller waits for another boot id of the node.
set -eu
url=$(cat "/etc/bmc/$RANKFALL_NODE.url")
exec curl --fail --silent --show-error --max-time 60 --netrc-file /etc/bmc/netrc --cacert /etc/bmc/ca.crt \
  --header 'Content-Type: application/json' --data '{"ResetType": "PowerCycle"}' "$url/Actions/ComputerSystem.Reset"
