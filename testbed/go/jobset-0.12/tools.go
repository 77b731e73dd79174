//go:build tools

// Package tools names the main packages that are built.
package tools

import (
	_ "sigs.k8s.io/jobset"
)
