// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// quiet reports whether a second with traffic had no retry.
func (w *world) quiet() bool {
	c := w.counts()
	return c.CallsPerSecond > 0 && c.RetriesPerSecond == 0
}

func TestSwitch_disable_retries_is_in_force_everywhere_and_ramps_back(t *testing.T) {
	w := newWorld(t)
	out := w.ctl(0, "switch", "disable-retries", "global", "--id", "all-off", "--for", "10m", "--restore-over", "4s",
		"--incident", "INC-1", "--reason", "test", "--confirm=global", "--yes", "--wait-for", "all", "-o", "json")
	var sw struct {
		Status struct{ Instances struct{ Target, InForce int } }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &sw), out)
	require.Equal(t, 20, sw.Status.Instances.Target)
	require.Equal(t, 20, sw.Status.Instances.InForce)
	w.eventually("the backend counts no retries", w.quiet)

	w.ctl(0, "switch", "revert", "all-off", "--yes")
	w.eventually("retries come back", func() bool { return w.counts().RetriesPerSecond > 0 })
}

func TestSwitch_force_open_stops_traffic_except_what_admit_lets_through(t *testing.T) {
	w := newWorld(t)
	w.backend("fail=0&latency=1ms")
	w.eventually("traffic flows", func() bool { return w.counts().CallsPerSecond > 50 })
	w.ctl(0, "switch", "force-open", "shop", "--id", "shed", "--for", "10m", "--restore-over", "0s", "--reason", "test", "--confirm=shop", "--yes", "--wait-for", "all")
	w.eventually("nothing arrives", func() bool { c := w.counts(); return c.CallsPerSecond == 0 && c.RetriesPerSecond == 0 })
	w.ctl(0, "switch", "revert", "shed", "--yes")
	w.eventually("traffic is back", func() bool { return w.counts().CallsPerSecond > 50 })

	w.ctl(0, "switch", "force-open", "shop", "--admit", "0.2", "--for", "10m", "--reason", "test", "--confirm=shop", "--yes", "--wait-for", "all")
	w.eventually("a part arrives", func() bool { c := w.counts(); return c.CallsPerSecond > 0 && c.CallsPerSecond < 100 })
}

func TestSwitch_ends_on_time_with_policyd_killed(t *testing.T) {
	w := newWorld(t)
	w.ctl(0, "switch", "disable-retries", "shop", "--for", "8s", "--restore-over", "1s", "--reason", "test", "--confirm=shop", "--yes", "--wait-for", "all")
	w.policyd.kill()
	w.eventually("the backend counts no retries", w.quiet)
	w.eventually("retries are back", func() bool { return w.counts().RetriesPerSecond > 0 })
}

func TestPolicyd_killed_traffic_goes_on_and_instances_resume(t *testing.T) {
	w := newWorld(t)
	w.policyd.kill()
	before := w.counts().Calls
	w.eventually("traffic goes on", func() bool { return w.counts().Calls > before+200 })

	code, body := w.fetch(http.MethodPost, "http://"+w.demo+"/instances/cart-1/restart")
	require.Equal(t, http.StatusOK, code, body)
	w.eventually("the instance runs on its disk cache", func() bool {
		for line := range strings.Lines(w.get("/instances")) {
			if strings.HasPrefix(line, "cart-1 ") {
				return strings.Contains(line, "disk cache")
			}
		}
		return false
	})

	w.startPolicyd()
	w.eventually("every instance has everything in force, by resume", func() bool {
		_, out, _ := w.ctlCode("fleet", "-o", "json")
		var list struct {
			Items []struct {
				State   string
				Resumed bool
			}
		}
		if json.Unmarshal([]byte(out), &list) != nil {
			return false
		}
		good := 0
		for _, in := range list.Items {
			if in.State == "live" && in.Resumed {
				good++
			}
		}
		return good == 20
	})
}

func TestPolicyd_ends_on_SIGTERM_with_streams_open(t *testing.T) {
	w := newWorld(t)
	w.policyd.signal(syscall.SIGTERM)
	require.NoError(t, <-w.policyd.done)
}

func TestApply_refuses_bad_documents_with_their_place_and_writes_nothing(t *testing.T) {
	w := newWorld(t)
	before := w.ctl(0, "export", "-o", "json")
	good := "apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: shop/new}\nspec: {maxAttempts: 2}\n"
	head := "apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: shop/cart}\nspec:\n"
	cases := map[string]struct{ doc, place, says string }{
		"an unknown key":            {head + "  retryon: {}\n", ":5:3", "retryOn"},
		"a duplicate key":           {head + "  maxAttempts: 2\n  maxAttempts: 3\n", ":6:3", "maxAttempts"},
		"a bare number as duration": {head + "  backoff: {base: 100}\n", ":5:19", "unit"},
		"a document that is huge":   {head + "  description: " + strings.Repeat("x", 65<<10) + "\n", "", "65536"},
		"a wrong type":              {head + "  maxAttempts: many\n", ":5:16", "maxAttempts"},
		"a number that is none":     {head + "  budget: {ratio: .nan}\n", ":5:19", "ratio"},
		"a value out of bounds":     {head + "  maxAttempts: 1000000\n", "", "maxAttempts"},
		"a bad one after a good":    {good + "---\n" + head + "  maxAttempts: 0\n", "", "maxAttempts"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "doc.yaml")
			require.NoError(t, os.WriteFile(path, []byte(tc.doc), 0o600))
			code, stdout, stderr := w.ctlCode("apply", "-f", path, "--yes")
			require.Equal(t, 7, code, stdout+stderr)
			require.Contains(t, stderr, tc.place)
			require.Contains(t, stderr, tc.says)
		})
	}
	require.Equal(t, before, w.ctl(0, "export", "-o", "json"))
}

func TestEdit_keeps_an_open_breaker_open(t *testing.T) {
	w := newWorld(t)
	w.backend("fail=1&latency=1ms")
	open := func() bool {
		return strings.Contains(w.instance("checkout-1"), `"open"`) && w.counts().CallsPerSecond == 0
	}
	w.eventually("every breaker opens", open)
	path := filepath.Join(t.TempDir(), "doc.yaml")
	require.NoError(t, os.WriteFile(path, []byte("apiVersion: policyd/v1\nkind: RetryPolicy\nmetadata: {scope: shop}\nspec: {maxAttempts: 4}\n"), 0o600))
	arrived := w.counts().Calls
	w.ctl(0, "apply", "-f", path, "--yes")
	require.Contains(t, w.instance("checkout-1"), `"open"`)
	require.LessOrEqual(t, w.counts().Calls-arrived, 20*3*3, "only probes arrive")
}

// instance returns the debug page of one instance as JSON.
func (w *world) instance(name string) string {
	return w.get("/instances/" + name + "/policyz?format=json")
}

func TestPolicyd_serves_nobody_else_while_it_cannot_tell_who_asks(t *testing.T) {
	for _, args := range [][]string{
		{"serve", "--grpc-addr", "0.0.0.0:0"},
		{"serve", "--http-addr", "[::]:0"},
		{"dev", "--demo", "--demo-addr", "0.0.0.0:0"},
		{"demo-fleet", "--listen", "192.0.2.1:0"},
	} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "policyd"), args...).CombinedOutput()
		require.Error(t, err, "%v", args)
		require.Contains(t, string(out), "is not a loopback address", "%v", args)
	}
}
