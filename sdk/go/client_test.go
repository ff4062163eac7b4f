// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	policyd "github.com/policyd/policyd/sdk/go"
	policydv1 "github.com/policyd/policyd/sdk/go/gen/policyd/v1"
)

func TestDiskCache_carries_policies_over_a_restart_without_policyd(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client(policyd.WithCacheDir(dir))
		conn := s.next()
		held := []*policydv1.Entry{tries("shop", 3, 4), switchEntry("ks-1", "shop", 5, time.Hour)}
		conn.apply(t, wholeState("e", 5, held...))
		if err := c.Close(t.Context()); err != nil { // flushes
			t.Fatal(err)
		}
		s.stop()
		time.Sleep(20 * time.Minute)

		log := newLog()
		again := newWatched(t, append(s.options(), policyd.WithCacheDir(dir), policyd.WithLogger(log.logger()))...)
		again.Touch(ep)
		if err := again.WaitReady(t.Context()); err != nil {
			t.Fatalf("not ready on the disk cache: %v", err)
		}
		st := again.Status()
		if st.State != policyd.StateConnecting || st.Source != "disk cache" || st.Revision != 5 || maxAttempts(again, "shop/x") != 1 {
			t.Fatalf("status %+v, maxAttempts %d", st, maxAttempts(again, "shop/x"))
		}
		if age := time.Since(st.AsOf); age < 20*time.Minute || age > 21*time.Minute {
			t.Fatalf("confirmed %s ago, want 20m", age)
		}
		if left := time.Until(st.Switches[0].ExpiresAt); (left - 40*time.Minute).Abs() > 2*time.Second {
			t.Fatalf("the switch ends in %s, want 40m: it must not start anew", left)
		}
		time.Sleep(5 * time.Second)
		if log.count("WARN policyd unreachable; retrying", "using=disk cache rev 5, 20m old") != 1 {
			t.Fatalf("log:\n%s", log)
		}

		s.start()
		conn = s.next()
		if r := conn.hello.GetResume(); r.GetRevision() != 5 || r.GetHash() != stateHash(held...) || conn.hello.GetSource() != "disk cache" {
			t.Fatalf("hello %v", conn.hello)
		}
		time.Sleep(43 * time.Minute) // past the end and its ramp
		if got := maxAttempts(again, "shop/x"); got != 4 || len(again.Status().Switches) != 0 {
			t.Fatalf("after the end of the switch: maxAttempts %d, switches %v", got, again.Status().Switches)
		}
	})
}

func TestDiskCache_is_as_old_as_the_last_confirmation(t *testing.T) {
	for name, kill := range map[string]bool{"closed": false, "killed": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				s := pipeServer(t)
				c := s.client(policyd.WithCacheDir(dir))
				conn := s.next()
				conn.apply(t, wholeState("e", 5, tries("shop", 3, 4)))
				conn.beat(t, 5)
				time.Sleep(2*time.Hour + 14*time.Second) // nothing changes, and policyd says so
				most, left := time.Second, dir
				if kill {
					most, left = 5*time.Minute+20*time.Second, t.TempDir()
					if err := os.CopyFS(left, os.DirFS(dir)); err != nil {
						t.Fatal(err)
					}
				}
				if err := c.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.stop()
				again := newWatched(t, append(s.options(), policyd.WithCacheDir(left))...)
				again.Touch(ep)
				if age := time.Since(again.Status().AsOf); age > 15*time.Second+most || again.Status().Source != "disk cache" {
					t.Errorf("confirmed %s ago as of %s, want at most %s more than a heartbeat", age, again.Status().Source, most)
				}
			})
		})
	}
}

func TestDiskCache_is_per_service_and_targets(t *testing.T) {
	dir := t.TempDir()
	for _, opts := range [][]policyd.Option{
		{policyd.WithService("shop", "web")},
		{policyd.WithService("shop", "api")},
		{policyd.WithService("shop", "web"), policyd.WithTargets("fx")},
		{policyd.WithService("", "")},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := pipeServer(t)
			c := s.client(append(opts, policyd.WithCacheDir(dir))...)
			s.next().apply(t, wholeState("e", 1, tries("global", 1, 2)))
			if err := c.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*.cache")); len(files) != 4 {
		t.Fatalf("files %v, want 4", files)
	}
}

func TestDiskCache_is_written_at_most_once_a_second(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		s.client(policyd.WithCacheDir(dir))
		conn := s.next()
		path := func() string { files, _ := filepath.Glob(filepath.Join(dir, "*.cache")); return fmt.Sprint(files) }
		content := func() string {
			data, _ := os.ReadFile(strings.Trim(path(), "[]"))
			return string(data)
		}
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))
		synctest.Wait()
		first := content()
		if first == "" {
			t.Fatal("not written")
		}
		for r := int64(2); r < 100; r++ {
			e := tries("shop", r, 2+r%3)
			conn.apply(t, changes("e", r, []*policydv1.Entry{e}, e))
		}
		synctest.Wait()
		if content() != first {
			t.Fatal("written again within a second")
		}
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		if content() == first {
			t.Fatal("the newest state was not written")
		}
	})
}

func TestO_RL_06_client_starts_on_a_damaged_cache(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client(policyd.WithCacheDir(dir))
		s.next().apply(t, wholeState("e", 1, tries("shop", 1, 4)))
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(filepath.Join(dir, "*.cache"))
		for name, damage := range map[string][]byte{"zeros": make([]byte, 1<<20), "empty": nil, "half": []byte(`{"policies":[`)} {
			if err := os.WriteFile(files[0], damage, 0o600); err != nil {
				t.Fatal(err)
			}
			log := newLog()
			c := s.client(policyd.WithCacheDir(dir), policyd.WithLogger(log.logger()))
			conn := s.next()
			if conn.hello.GetResume() != nil || conn.hello.GetSource() != "built-in" {
				t.Fatalf("%s: hello %v", name, conn.hello)
			}
			conn.apply(t, wholeState("e", 1, tries("shop", 1, 4)))
			if err := c.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := log.count("WARN"); n != 1 || log.count("WARN disk cache ignored") != 1 {
				t.Fatalf("%s: %d warnings, want 1:\n%s", name, n, log)
			}
			if data, _ := os.ReadFile(files[0]); !strings.HasPrefix(string(data), "policyd cache 1 ") {
				t.Fatalf("%s: the file was not replaced", name)
			}
		}
	})
}

const fileHead = `{"apiVersion":"policyd/v1","kind":"RetryPolicy","metadata":{"scope":"shop"},"spec":{"maxAttempts":`

func TestO_RL_05_policy_file_follows_every_way_of_writing(t *testing.T) {
	dir := t.TempDir()
	write := func(path string, n int) {
		t.Helper()
		if err := os.WriteFile(path, fmt.Appendf(nil, "%s%d}}", fileHead, n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i <= 3; i++ {
		must(os.Mkdir(filepath.Join(dir, fmt.Sprint("..d", i)), 0o700))
		write(filepath.Join(dir, fmt.Sprint("..d", i), "policies.json"), i)
	}
	path := filepath.Join(dir, "policies.json")
	point := func(i int) {
		t.Helper()
		must(os.Symlink(fmt.Sprint("..d", i), filepath.Join(dir, "..tmp")))
		must(os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
	}
	point(1)
	must(os.Symlink(filepath.Join("..data", "policies.json"), path))

	changed := make(chan policyd.PolicyEvent, 10)
	log := newLog()
	c := newWatched(t, policyd.WithPolicyFile(path), policyd.WithCacheDir(""), policyd.WithLogger(log.logger()),
		policyd.WithHooks(policyd.Hooks{OnPolicy: func(e policyd.PolicyEvent) { changed <- e }}))
	want := func(n int64) {
		t.Helper()
		for receive(t, changed, fmt.Sprintf("content %d", n)).Err != nil { // of a file that is being written
		}
		if got := maxAttempts(c, "shop/x"); got != n {
			t.Fatalf("maxAttempts %d, want %d", got, n)
		}
	}
	want(1)
	if st := c.Status(); st.State != policyd.StateStatic || st.Source != "file policies.json" {
		t.Fatalf("status %+v", st)
	}
	c.Touch(ep)
	point(2)
	want(2)
	point(3)
	want(3)
	write(path, 4) // in place, through the links
	want(4)
	other := filepath.Join(dir, "new.json")
	write(other, 5)
	must(os.Rename(other, path))
	want(5)

	must(os.Remove(path))
	for line := range log.fresh {
		if strings.Contains(line, "policy file not taken up") && strings.Contains(line, "no such file") {
			break
		}
	}
	if got := maxAttempts(c, "shop/x"); got != 5 || c.Status().LastErr == nil {
		t.Fatalf("maxAttempts %d without a file, want the last good 5", got)
	}
	must(os.WriteFile(path, []byte(fileHead+`"many"}}`), 0o600))
	if e := receive(t, changed, "the rejection"); e.Err == nil || !strings.Contains(e.Err.Error(), "line 1, column 99: spec.maxAttempts: a whole number is due") {
		t.Fatalf("event %+v", e)
	}
	if got := maxAttempts(c, "shop/x"); got != 5 {
		t.Fatalf("maxAttempts %d on a bad file, want the last good 5", got)
	}
	write(path, 2)
	want(2)
	if c.Status().LastErr != nil {
		t.Fatalf("status %+v", c.Status())
	}
}

func TestPolicyFile_says_for_as_long_as_it_is_refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "p.json")
		write := func(spec string) {
			t.Helper()
			synctest.Wait() // no look at half of a file
			if err := os.WriteFile(path, []byte(fileHead+spec+"}}"), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		write("2")
		refusals := 0
		c := newWatched(t, policyd.WithPolicyFile(path), policyd.WithCacheDir(""), policyd.WithLogger(slog.New(slog.DiscardHandler)),
			policyd.WithHooks(policyd.Hooks{OnPolicy: func(e policyd.PolicyEvent) {
				if e.Err != nil {
					refusals++
				}
			}}))
		c.Touch(ep)
		write(`"many"`)
		if st := c.Status(); st.LastErr == nil || !strings.Contains(st.LastErr.Error(), "a whole number is due") {
			t.Errorf("status %+v", st)
		}
		write("2")
		if st := c.Status(); st.LastErr != nil {
			t.Errorf("status %+v", st)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if refusals != 1 || maxAttempts(c, "shop/x") != 2 {
			t.Errorf("told %d times", refusals)
		}
	})
}

func TestPolicyFile_gives_way_to_the_disk_cache(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "p.json")
	if err := os.WriteFile(path, []byte(fileHead+"5}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		opts := []policyd.Option{policyd.WithPolicyFile(path), policyd.WithCacheDir(dir)}
		c := s.client(opts...)
		s.next().apply(t, wholeState("e", 5, tries("shop", 3, 4), switchEntry("ks-1", "shop", 5, time.Hour)))
		if err := c.Close(t.Context()); err != nil { // flushes
			t.Fatal(err)
		}
		s.stop()

		again := s.client(opts...)
		time.Sleep(time.Minute)
		if st := again.Status(); st.Source != "disk cache" || st.Revision != 5 || len(st.Switches) != 1 || maxAttempts(again, "shop/x") != 1 {
			t.Errorf("status %+v, maxAttempts %d: policyd is gone, and its switch with it", st, maxAttempts(again, "shop/x"))
		}
	})
}

func TestPolicyFile_gives_way_to_policyd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.json")
	if err := os.WriteFile(path, []byte(fileHead+"5}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client(policyd.WithPolicyFile(path))
		if got := maxAttempts(c, "shop/x"); got != 5 {
			t.Fatalf("maxAttempts %d before policyd answers, want the file's 5", got)
		}
		conn := s.next()
		if conn.hello.GetSource() != "file" {
			t.Fatalf("source %q", conn.hello.GetSource())
		}
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))
		if err := os.WriteFile(path, []byte(fileHead+"4}}"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if got := maxAttempts(c, "shop/x"); got != 2 {
			t.Fatalf("maxAttempts %d, want policyd's 2", got)
		}
	})
}

func TestSwitch_stops_waits_and_ends_on_time_when_cut_off(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		type told struct {
			id     string
			active bool
			at     time.Time
		}
		events := make(chan told, 10)
		log := newLog()
		c := s.client(policyd.WithLogger(log.logger()), policyd.WithHooks(policyd.Hooks{
			OnSwitch: func(sw policyd.Switch, active bool) { events <- told{sw.ID, active, time.Now()} },
		}))
		conn := s.next()
		shop := tries("shop", 1, 4)
		conn.apply(t, wholeState("e", 1, shop))
		woken := c.Changed()
		start := time.Now()
		ks := switchEntry("ks-1", "shop", 2, 30*time.Minute)
		conn.apply(t, changes("e", 2, []*policydv1.Entry{shop, ks}, ks))
		receive(t, woken, "the wake-up of waits")
		if v := c.Effective("shop/x").Values["maxAttempts"]; v.Value != int64(1) || v.From != "switch ks-1" || v.Shadow[0] != (policyd.Shadow{Value: int64(4), From: "shop"}) {
			t.Fatalf("maxAttempts %+v", v)
		}
		if e := receive(t, events, "OnSwitch"); e.id != "ks-1" || !e.active {
			t.Fatalf("event %+v", e)
		}
		if sw := c.Status().Switches; len(sw) != 1 || sw[0].Action != "disable-retries" || sw[0].Incident != "INC-1" || sw[0].Scope != "shop" {
			t.Fatalf("switches %+v", sw)
		}

		s.stop()
		if e := receive(t, events, "OnSwitch"); e.active || e.at.Sub(start) != 30*time.Minute {
			t.Fatalf("told off after %s: %+v", e.at.Sub(start), e)
		}
		time.Sleep(2*time.Minute + time.Second)
		if got := maxAttempts(c, "shop/x"); got != 4 {
			t.Fatalf("maxAttempts %d after the ramp, want 4", got)
		}
		if log.count("WARN kill switch on id=ks-1 action=disable-retries scope=shop until=") != 1 || log.count("INFO kill switch off id=ks-1") != 1 {
			t.Fatalf("log:\n%s", log)
		}
	})
}

func TestSwitch_of_other_instances_is_not_told(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		none := switchEntry("ks-none", "shop", 1, time.Hour)
		percent := int64(1) // i-1 is not among one in a hundred
		none.GetKillSwitch().Spec.Percent = &percent
		drill := switchEntry("ks-drill", "shop", 2, time.Hour)
		drill.GetKillSwitch().Drill = true
		s.next().apply(t, wholeState("e", 2, none, drill))
		if sw := c.Status().Switches; len(sw) != 0 {
			t.Fatalf("switches %+v", sw)
		}
	})
}

func TestO_SE_04_token_is_told_nowhere(t *testing.T) {
	const secret = "pd_s3cr3t-t0ken"
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		log := newLog()
		c := s.client(policyd.WithTokenFile(path), policyd.WithLogger(log.logger()))
		conn := s.next()
		if got := conn.md.Get("authorization"); fmt.Sprint(got) != "[Bearer "+secret+"]" {
			t.Fatalf("authorization %v", got)
		}
		conn.end <- status.Error(codes.Unavailable, "failing")
		time.Sleep(time.Minute)
		for _, bad := range []string{"", secret + " " + secret, secret + "\n" + secret, strings.Repeat(secret, 5000)} {
			if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			s.stop()
			s.start()
			time.Sleep(time.Minute)
			if st := c.Status(); st.LastErr == nil || !strings.Contains(st.LastErr.Error(), "token file") {
				t.Fatalf("status %+v", st)
			}
		}
		page := getPage(t, c, "/", "application/json") + getPage(t, c, "/", "text/html")
		if all := log.String() + page + fmt.Sprintf("%+v", c.Status()); strings.Contains(all, "s3cr3t") {
			t.Fatalf("the token was told:\n%s", all)
		}
	})
	for _, addr := range []string{"https://svc:s3cr3t@policyd:7400", "svc:s3cr3t@policyd:7400", "policyd:7400/?token=s3cr3t"} {
		if _, err := policyd.New(policyd.WithAddr(addr)); err == nil || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("address %q: %v", addr, err)
		}
	}
}

func TestO_SE_08_expired_token_is_seen_and_a_new_one_taken_up(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		log := newLog()
		c := s.client(policyd.WithTokenFile(path), policyd.WithLogger(log.logger()))
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 4)))
		expired := status.Error(codes.Unauthenticated, "token has expired")
		s.refuse.Store(&expired)
		conn.end <- expired // revoked while the stream is up
		receive(t, conn.left, "the end of the stream")
		synctest.Wait()
		before := s.count.Load()
		time.Sleep(5 * time.Minute)
		if tries := s.count.Load() - before; tries < 9 || tries > 10 {
			t.Fatalf("%d tries in 5 minutes, want one every 30 to 33s", tries)
		}
		st := c.Status()
		if st.State != policyd.StateStale || status.Code(st.LastErr) != codes.Unauthenticated || maxAttempts(c, "shop/x") != 4 {
			t.Fatalf("status %+v", st)
		}
		if n := log.count("WARN policyd refused the token; retrying every 30s", "file="+path); n != 1 {
			t.Fatalf("%d lines of it, want 1:\n%s", n, log)
		}
		write("second")
		s.refuse.Store(nil)
		conn = s.next()
		if got := conn.md.Get("authorization"); fmt.Sprint(got) != "[Bearer second]" {
			t.Fatalf("authorization %v", got)
		}
	})
}

func TestReport_tells_what_happened_since_the_last(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))
		call := func(endpoint string, n int) {
			for range n {
				_, _ = policyd.Do(t.Context(), endpoint, func(context.Context) (int, error) { return 0, nil }, policyd.Using(c))
			}
		}
		call("shop/a/x", 3)
		c.TouchHost("api.example.com")
		start := time.Now()
		r := receive(t, conn.reports, "a report")
		if took := time.Since(start); took < 8*time.Second || took > 12*time.Second {
			t.Fatalf("first report after %s, want 10s with jitter", took)
		}
		if len(r.GetEndpoints()) != 1 || r.GetEndpoints()[0].GetEndpoint() != "shop/a/x" || r.GetEndpoints()[0].GetCalls() != 3 || r.GetEndpoints()[0].GetAttempts() != 3 || r.GetEndpoints()[0].GetBreaker() != "closed" {
			t.Fatalf("report %v", r)
		}

		// Bounded: 199 endpoints by name, the rest in one line.
		for i := range 250 {
			call(fmt.Sprintf("shop/many/e%03d", i), 1+i%2)
		}
		r = receive(t, conn.reports, "a report")
		other := r.GetEndpoints()[len(r.GetEndpoints())-1]
		var calls int64
		for _, e := range r.GetEndpoints() {
			calls += e.GetCalls()
		}
		if len(r.GetEndpoints()) != 200 || other.GetEndpoint() != "other" || other.GetCalls() != 51 || calls != 375 {
			t.Fatalf("%d lines, %d calls, last %v", len(r.GetEndpoints()), calls, other)
		}
		if r = receive(t, conn.reports, "a report"); len(r.GetEndpoints()) != 0 {
			t.Fatalf("told twice: %v", r)
		}

		// The last one goes out with Close.
		call("shop/a/x", 2)
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r = receive(t, conn.reports, "the last report"); len(r.GetEndpoints()) != 1 || r.GetEndpoints()[0].GetCalls() != 2 {
			t.Fatalf("last report %v", r)
		}
		receive(t, conn.left, "the end of the stream")
	})
}

func TestClose_ends_everything_and_calls_go_on(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 4)))
		start := time.Now()
		for range 3 {
			if err := c.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took > time.Second {
			t.Fatalf("took %s", took)
		}
		if n, err := policyd.Do(t.Context(), "shop/x/y", func(context.Context) (int, error) { return 7, nil }, policyd.Using(c)); n != 7 || err != nil {
			t.Fatalf("call after Close: %d, %v", n, err)
		}
		if got := maxAttempts(c, "shop/x/y"); got != 4 {
			t.Fatalf("maxAttempts %d, want the last good 4", got)
		}
		if err := c.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n := s.count.Load(); n != 1 {
			t.Fatalf("%d streams, one of them after Close", n)
		}
	})
}

func TestClose_does_not_wait_for_a_policyd_that_hangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next() // never answered, not even its goodbye
		_ = conn
		start := time.Now()
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > time.Second {
			t.Fatalf("took %s", took)
		}
		if err := c.WaitReady(t.Context()); err == nil {
			t.Fatal("ready without a policy")
		}
	})
}

func TestO_PU_14_a_thousand_clients_leave_nothing_behind(t *testing.T) {
	s := tcpServer(t)
	warm := func() {
		c, err := policyd.New(s.options()...)
		if err != nil {
			t.Fatal(err)
		}
		c.Touch("shop/web/a")
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	warm()
	noLeak(t, 8, func() { // the server's side of the last connections may linger
		for range 1000 {
			warm()
		}
	})
}

func TestO_PU_14_endpoint_used_before_the_first_answer_gets_its_policy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		c.Touch("shop/pay/b") // between hello and answer
		conn.apply(t, wholeState("e", 1, tries("shop/pay/b", 1, 5)))
		if got := c.Stats("shop/pay/b"); got == nil || maxAttempts(c, "shop/pay/b") != 5 {
			t.Fatal("the endpoint has not its policy")
		}
	})
}

func TestO_BR_14_endpoints_cost_no_goroutine_and_are_freed(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	noLeak(t, 5, func() {
		c, err := policyd.New(policyd.WithCacheDir(""))
		if err != nil {
			t.Fatal(err)
		}
		const n = 10_000
		for i := range n {
			c.Touch(fmt.Sprintf("shop/many/e%05d", i))
		}
		each := (heap() - before) / n
		t.Logf("%d bytes per endpoint", each)
		if each > 3<<10 {
			t.Errorf("%d bytes per endpoint, want at most %d", each, 3<<10)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		runtime.KeepAlive(c)
	})
	if left := heap() - before; left > 10<<20 {
		t.Errorf("%d bytes left", left)
	}
}

func TestEndpoint_look_up_does_not_allocate(t *testing.T) {
	c := newWatched(t, policyd.WithCacheDir(""))
	for i := range 1000 {
		c.Touch(fmt.Sprintf("shop/many/e%04d", i))
	}
	if n := testing.AllocsPerRun(1000, func() { c.Touch("shop/many/e0500") }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkEndpoint_among_1000(b *testing.B) {
	c := newWatched(b, policyd.WithCacheDir(""))
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("shop/many/e%04d", i)
		c.Touch(names[i])
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Touch(names[i%1000])
	}
}

func TestUnmatched_hosts_are_bounded_least_recently_used_first(t *testing.T) {
	c := newWatched(t, policyd.WithCacheDir(""), policyd.WithService("shop", "web"))
	for i := range 1000 {
		c.TouchHost(fmt.Sprintf("h%04d.example", i))
	}
	c.TouchHost("h0000.example") // used again: h0001 is the oldest now
	c.TouchHost("new.example")
	for host, want := range map[string]bool{"h0000.example": true, "h0001.example": false, "h0002.example": true, "new.example": true} {
		if got := c.Kept(host); got != want {
			t.Errorf("%s kept = %v, want %v", host, got, want)
		}
	}
	if got := c.ScopeOfHost("new.example"); got != "shop" {
		t.Errorf("unmatched calls obey %q, want the own namespace", got)
	}
	if got := c.Match("GET", strings.Repeat("x", 5000)+".example", "/"); len(got) > 253 {
		t.Errorf("a name of %d bytes is kept", len(got))
	}
}

func TestMatch_follows_the_documents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		conn := s.next()
		if got := c.ScopeOfHost("pay.shop"); got != "shop" {
			t.Fatalf("unmatched calls obey %q", got)
		}
		method, host, path, grpc := "POST", "pay.shop", "/v1/charges/{id}", "/shop.Pay/*"
		charge := policyEntry("shop/pay/charge", 1, &policydv1.PolicySpec{Match: &policydv1.Match{
			Http: &policydv1.HttpMatch{Method: &method, Host: &host, Path: &path}, Grpc: &policydv1.GrpcMatch{Method: &grpc},
		}})
		pay := policyEntry("shop/pay", 2, &policydv1.PolicySpec{Match: &policydv1.Match{Http: &policydv1.HttpMatch{Host: &host}}})
		conn.apply(t, wholeState("e", 2, charge, pay))
		for _, m := range []struct{ got, want string }{
			{c.Match("POST", "pay.shop:443", "/v1/charges/7"), "shop/pay/charge"},
			{c.Match("GET", "pay.shop", "/v1/charges/7"), "pay.shop"},
			{c.MatchGRPC("/shop.Pay/Charge", "pay.shop"), "shop/pay/charge"},
			{c.MatchGRPC("/shop.Other/X", "other.shop"), "other.shop"},
			{c.ScopeOfHost("pay.shop"), "shop/pay"}, // the host that was known before moved
		} {
			if m.got != m.want {
				t.Errorf("matched %q, want %q", m.got, m.want)
			}
		}
	})
}

func TestHooks_cannot_hold_up_or_break_the_client(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		release := make(chan struct{})
		var last atomic.Int64
		var n atomic.Int64
		log := newLog()
		c := s.client(policyd.WithLogger(log.logger()), policyd.WithHooks(policyd.Hooks{OnPolicy: func(e policyd.PolicyEvent) {
			n.Add(1)
			last.Store(e.Revision)
			<-release
			panic("a bug of the application")
		}}))
		conn := s.next()
		for r := int64(1); r <= 1000; r++ {
			e := tries("shop", r, 2)
			if ack := conn.apply(t, wholeState("e", r, e)); ack.GetRevision() != r {
				t.Fatalf("ack %v", ack)
			}
		}
		close(release)
		synctest.Wait()
		if last.Load() != 1000 || n.Load() > 258 {
			t.Fatalf("%d events, the last of revision %d; want the newest and at most 257", n.Load(), last.Load())
		}
		if got := log.count("ERROR hook panicked"); got != 1 {
			t.Fatalf("%d lines of the panic, want 1", got)
		}
		if c.Status().State != policyd.StateLive {
			t.Fatalf("status %+v", c.Status())
		}
	})
}

func TestHooks_that_end_their_goroutine_hold_up_no_other(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		var told []int64
		c := s.client(policyd.WithHooks(policyd.Hooks{OnPolicy: func(e policyd.PolicyEvent) {
			told = append(told, e.Revision)
			runtime.Goexit() // as testing.T.FailNow does
		}}))
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))
		conn.apply(t, wholeState("e", 2, tries("shop", 2, 3)))
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if !slices.Equal(told, []int64{1, 2}) {
			t.Errorf("told of revisions %v", told)
		}
	})
}

// panicking is a log handler with a bug.
type panicking struct{ slog.Handler }

func (panicking) Handle(context.Context, slog.Record) error { panic("a bug of the application") }

func TestLogger_that_panics_does_not_reach_the_host(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client(policyd.WithLogger(slog.New(panicking{slog.DiscardHandler.WithAttrs(nil)})))
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 2)))
		conn.end <- errors.New("gone")
		s.next().apply(t, wholeState("e", 2, tries("shop", 2, 4)))
		if got := maxAttempts(c, "shop/x"); got != 4 {
			t.Fatalf("maxAttempts %d", got)
		}
	})
}

func TestPanic_of_the_watch_does_not_reach_the_host(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		log := newLog()
		c := newWatched(t, append(s.options(), policyd.WithLogger(log.logger()))...)
		var calls atomic.Int64
		c.SetRandomFunc(func() float64 {
			if n := calls.Add(1); n <= 2 {
				panic("a bug of ours")
			}
			return 0.5
		})
		c.Touch(ep)
		conn := s.next()
		conn.apply(t, wholeState("e", 1, tries("shop", 1, 4)))
		if got := maxAttempts(c, "shop/x"); got != 4 {
			t.Fatalf("maxAttempts %d", got)
		}
		if n := log.count("ERROR policyd client panicked", "part=watch"); n != 1 {
			t.Fatalf("%d lines of the panic, want 1:\n%s", n, log)
		}
	})
}

func TestClose_leaves_a_status_that_claims_nothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pipeServer(t)
		c := s.client()
		s.next().apply(t, wholeState("e", 1, tries("shop", 1, 2)))
		if st := c.Status(); st.State != policyd.StateLive {
			t.Fatalf("%+v", st)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := c.Status(); st.State != policyd.StateStale || st.Revision != 1 || st.LastErr == nil {
			t.Fatalf("after Close %+v", st)
		}
	})
}
