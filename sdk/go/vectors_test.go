// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/engine"
)

// readVectors reads one list of a file of vectors.
func readVectors(tb testing.TB, file, list string, into any) {
	tb.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "..", "spec", "vectors", file))
	if err != nil {
		tb.Fatal(err)
	}
	var lists map[string]json.RawMessage
	if err := json.Unmarshal(raw, &lists); err != nil {
		tb.Fatal(err)
	}
	if err := json.Unmarshal(lists[list], into); err != nil {
		tb.Fatalf("%s of %s: %v", list, file, err)
	}
}

func TestCodes_vectors(t *testing.T) {
	var vectors []struct {
		Code                         policyd.Code
		GRPC                         *string
		Sentinel, Temporary, Timeout bool
	}
	readVectors(t, "outcomes.json", "codes", &vectors)
	sentinels := []error{
		policyd.ErrBreakerOpen, policyd.ErrBudget, policyd.ErrAttempts, policyd.ErrDeadline, policyd.ErrSwitch, policyd.ErrConcurrency,
	}
	for _, c := range vectors {
		e := &policyd.Error{Code: c.Code, Err: status.Error(codes.Aborted, "last")}
		want := codes.Aborted.String() // the last attempt's
		if c.GRPC != nil {
			want = *c.GRPC
		}
		if got := status.Code(e).String(); got != want {
			t.Errorf("%s: gRPC %s, want %s", c.Code, got, want)
		}
		found := 0
		for _, s := range sentinels {
			if errors.Is(e, s) {
				found++
			}
		}
		if e.Temporary() != c.Temporary || e.Timeout() != c.Timeout || (found == 1) != c.Sentinel || found > 1 {
			t.Errorf("%s: temporary %v, timeout %v, %d sentinels", c.Code, e.Temporary(), e.Timeout(), found)
		}
		if !strings.Contains(e.Error(), string(c.Code)) {
			t.Errorf("%s: %s", c.Code, e)
		}
	}
}

func TestNested_vectors(t *testing.T) {
	var vectors []struct {
		Name          string
		Settings      map[string]any
		Marked, Marks bool
		Attempts      int
	}
	readVectors(t, "nested.json", "calls", &vectors)
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClient(t, with(p0, plainSettings(t, v.Settings)))
				ctx := t.Context()
				if v.Marked {
					ctx = policyd.WithIncoming(ctx, "policyd.attempt=1")
				}
				s := statuses(503)
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://upstream.shop/", http.NoBody)
				resp, err := c.Transport(s, everything).RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if len(s.seen) != v.Attempts {
					t.Errorf("%d attempts, want %d", len(s.seen), v.Attempts)
				}
				for i, sent := range s.seen {
					want := ""
					if v.Marks {
						want = "policyd.attempt=" + string(rune('1'+i))
					}
					if got := sent.Header.Get("Baggage"); got != want {
						t.Errorf("attempt %d: %q, want %q", i+1, got, want)
					}
				}
			})
		})
	}
}

// plainSettings reads settings of vectors: booleans, whole numbers and words.
func plainSettings(tb testing.TB, in map[string]any) set {
	tb.Helper()
	out := set{}
	for path, v := range in {
		f, ok := engine.FieldByPath(path)
		if !ok {
			tb.Fatalf("no setting %q", path)
		}
		switch v := v.(type) {
		case bool:
			out[f] = engine.Bool(v)
		case float64:
			out[f] = engine.Int(int64(v))
		case string:
			out[f] = engine.Enum(v)
		default:
			tb.Fatalf("%s: %v", path, v)
		}
	}
	return out
}
