//go:build tools

// Package tools names the main packages that are built.
package tools

import (
	_ "github.com/grafana/loki/v3/cmd/loki"
)
