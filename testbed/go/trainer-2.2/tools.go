//go:build tools

// Package tools names the main packages that are built.
package tools

import (
	_ "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager"
)
