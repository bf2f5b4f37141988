//go:build tools

// Package server pins the S3 server of the tests: go.mod has its version, go.sum its checksums.
package server

import _ "github.com/versity/versitygw/cmd/versitygw"
