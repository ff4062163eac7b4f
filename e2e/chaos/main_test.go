// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package chaos_test runs three members of etcd, three replicas of policyd and 200 SDK
// instances as processes, breaks them and the links between them by a schedule that a seed
// makes, and checks that no instance ever has what the store never had, that what was
// acknowledged comes into force everywhere, and that nothing is lost, doubled or left behind.
package chaos_test

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	bin      string // holds policyd
	etcdBin  string // holds etcd, as server, and etcdutl
	fleetBin string // this very program, or one whose clock can be stepped
	steps    bool   // the latter

	seed     = flag.Uint64("chaos.seed", 0, "seed of the schedule; 0: a new one")
	duration = flag.Duration("chaos.duration", 0, "how long faults go on; 0: the short form")

	edits     = flag.Int("chaos.edits", 0, "go on until so many edits were tried")
	transport = flag.String("chaos.transport", "", "of watch streams: grpc or lean; empty: both, by the seed")
	race      = flag.Bool("chaos.race", false, "build policyd and the fleets with the race detector")
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
	bin, fleetBin = dir, os.Args[0]
	err = build(".", dir, *race, "../../cmd/policyd")
	if err == nil && *duration > 0 { // it costs a minute
		fleetBin, steps = filepath.Join(dir, "fleet"), true
		err = buildFleet(dir, fleetBin)
	}
	if err == nil {
		etcdBin, err = etcdDir()
	}
	if err == nil {
		err = build("etcd", etcdBin, false, "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/etcdutl/v3")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		return 1
	}
	return m.Run()
}

func build(module, into string, race bool, packages ...string) error {
	return golang(module, race, append([]string{"build", "-o", into + "/", fmt.Sprintf("-race=%v", race)}, packages...)...)
}

func golang(module string, race bool, args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if race {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

// buildFleet builds this package with a standard library whose clock can be stepped: the time
// of day moves, monotonic time does not, as with the clock of a machine.
func buildFleet(dir, into string) error {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	path := filepath.Join(strings.TrimSpace(string(root)), "src/time/time.go")
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const read = "\tsec, nsec, mono := runtimeNow()\n"
	stepped := strings.Replace(string(source), "func Now() Time {\n"+read, "func Now() Time {\n"+read+"\tsec += stepped.Load()\n", 1)
	stepped = strings.Replace(stepped, "import (\n", "import (\n\t\"sync/atomic\"\n", 1)
	if len(stepped) == len(source) || !strings.Contains(stepped, "stepped.Load()") {
		return fmt.Errorf("%s is not as expected: its clock cannot be stepped", path)
	}
	stepped += "\nvar stepped atomic.Int64\n\n// Step moves the time of day.\nfunc Step(seconds int64) { stepped.Add(seconds) }\n"
	changed, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: changed}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(changed, []byte(stepped), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return err
	}
	return golang(".", *race, "test", "-c", "-tags", "chaosclock", "-overlay", overlay, "-o", into, fmt.Sprintf("-race=%v", *race), ".")
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
