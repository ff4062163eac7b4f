// SPDX-License-Identifier: Apache-2.0

package policyd_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	policyd "github.com/policyd/policyd/sdk/go"
)

func TestEndpoints_count_calls_by_endpoint(t *testing.T) {
	c, err := policyd.New(policyd.WithCacheDir(""))
	if err != nil {
		t.Fatal(err)
	}
	ok := func(context.Context) (int, error) { return 1, nil }
	bad := func(context.Context) (int, error) { return 0, policyd.Permanent(errors.New("bad")) }
	for range 3 {
		if _, err := policyd.Do(t.Context(), "fx/rates", ok, policyd.Using(c)); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = policyd.Do(t.Context(), "fx/quotes", bad, policyd.Using(c))
	client := &http.Client{Transport: c.Transport(roundTripFunc(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	}))}
	resp, err := client.Get("http://somewhere.example/")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	stats := c.Endpoints()
	if len(stats) != 3 || stats[0].Endpoint != "fx/quotes" || stats[1].Endpoint != "fx/rates" || stats[2].Endpoint != "somewhere.example" {
		t.Fatalf("got %+v", stats)
	}
	if s := stats[1]; s.Calls != 3 || s.OK != 3 || s.Attempts() != 3 || s.Unmatched {
		t.Errorf("got %+v", s)
	}
	if !stats[2].Unmatched || stats[2].Calls != 1 {
		t.Errorf("got %+v", stats[2])
	}
}

func TestWithHooks_tells_every_hook_in_turn(t *testing.T) {
	var told []string
	note := func(who string) policyd.Hooks {
		return policyd.Hooks{
			OnClient: func(c *policyd.Client) {
				if c == nil {
					t.Error("no client")
				}
				told = append(told, who+" client")
			},
			OnRetry:  func(context.Context, policyd.RetryEvent) { told = append(told, who+" retry"); panic(who) },
			OnGiveUp: func(context.Context, *policyd.Error) { told = append(told, who+" gave up") },
		}
	}
	c, err := policyd.New(policyd.WithCacheDir(""), policyd.WithHooks(note("a")), policyd.WithHooks(policyd.Hooks{}), policyd.WithHooks(note("b")))
	if err != nil {
		t.Fatal(err)
	}
	attempts := 0
	_, err = policyd.Do(t.Context(), "fx/rates", func(context.Context) (int, error) {
		if attempts++; attempts > 1 {
			return 0, errors.New("unknown")
		}
		return 0, policyd.RetryAfter(errors.New("busy"), 0)
	}, policyd.Using(c))
	if err == nil {
		t.Fatal("no error")
	}
	if want := []string{"a client", "b client", "a retry", "b retry"}; !slices.Equal(told, want) {
		t.Fatalf("told %q, want %q", told, want)
	}
}
