//go:build tools

// Package tools names the main packages that are built.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)
