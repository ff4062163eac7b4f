// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package chaos_test runs three members of etcd, three replicas of policyd and 200 SDK
// instances as processes, breaks them and the links between them by a schedule that a seed
// makes, and checks that no instance ever has what the store never had, that what was
// acknowledged comes into force everywhere, and that nothing is lost, doubled or left behind.
package chaos_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

var (
	bin     string // holds policyd
	etcdBin string // holds etcd, as server, and etcdutl

	seed     = flag.Uint64("chaos.seed", 0, "seed of the schedule; 0: a new one")
	duration = flag.Duration("chaos.duration", 0, "how long faults go on; 0: the short form")
)

const fleetVariable = "POLICYD_CHAOS_FLEET"

func TestMain(m *testing.M) {
	if os.Getenv(fleetVariable) != "" {
		if err := runFleet(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	flag.Parse()
	if testing.Short() {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "policyd-chaos-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	err = build(".", dir, "../../cmd/policyd")
	if err == nil {
		etcdBin, err = etcdDir()
	}
	if err == nil {
		err = build("etcd", etcdBin, "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/etcdutl/v3")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		return 1
	}
	return m.Run()
}

func build(module, into string, packages ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-o", into + "/"}, packages...)...)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

// etcdDir is where etcd is kept between runs: it is linked again only when its module
// changes. It has a module of its own because a stock etcd is wanted, not one made with this
// repository's choice of versions.
func etcdDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sums, err := os.ReadFile("etcd/go.sum")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "policyd-chaos", fmt.Sprintf("%x", sha256.Sum256(sums))[:16])
	return dir, os.MkdirAll(dir, 0o700)
}

// shortForm is how long faults go on in a run of all tests.
const shortForm = 18 * time.Second
