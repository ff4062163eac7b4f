// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/hashicorp/go-retryablehttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/policyd/policyd/examples/migrate"
	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policytest"
)

// hosts answers for every host: the clients under test take it for their proxy, so that the
// names of the documents are called over real connections.
var hosts sync.Map // name to http.HandlerFunc

func TestMain(m *testing.M) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h, ok := hosts.Load(r.Host); ok {
			h.(http.HandlerFunc)(w, r) //nolint:forcetypeassert // nothing else is stored
			return
		}
		http.Error(w, "no such host", http.StatusBadRequest)
	}))
	for _, name := range []string{"HTTP_PROXY", "http_proxy"} {
		_ = os.Setenv(name, proxy.URL)
	}
	code := m.Run()
	proxy.Close()
	os.Exit(code)
}

// upstream counts what a host is sent.
type upstream struct {
	host string
	sent atomic.Int64
}

// serve lets host answer with statuses in turn, and the last for ever.
func serve(t *testing.T, host string, statuses ...int) *upstream {
	t.Helper()
	u := &upstream{host: host}
	hosts.Store(host, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := min(u.sent.Add(1), int64(len(statuses)))
		if r.URL.Path == "/asks-for-an-hour" {
			w.Header().Set("Retry-After", "3600")
		}
		w.WriteHeader(statuses[n-1])
	}))
	t.Cleanup(func() { hosts.Delete(host) })
	return u
}

// under returns a context whose calls are under the document of a page.
func under(t *testing.T, file string, more ...string) (context.Context, *policytest.Fake) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f := policytest.New(t, string(text))
	for _, doc := range more {
		f.Apply(doc)
	}
	return policyd.WithCall(t.Context(), policyd.Using(f.Client())), f
}

const observe = "{apiVersion: policyd/v1, kind: RetryPolicy, metadata: {scope: global}, spec: {observe: true}}"

// call makes a request and tells its status, or that there is an error.
func call(ctx context.Context, t *testing.T, api *http.Client, method, url string) string {
	t.Helper()
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader("{}")
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := api.Do(req)
	if err != nil {
		return "error"
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return fmt.Sprint(resp.StatusCode)
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// clients are tried with the same cases: what they return, and what the server is sent.
func clients(t *testing.T, host, file string, before, after func() *http.Client) {
	cases := []struct {
		name, method, path string
		statuses           []int
		limit              time.Duration // of the caller's patience
		before, after      string        // the answer and the sends
	}{
		{"a hiccup is hidden", "GET", "/", []int{503, 503, 200}, time.Minute, "200 after 3", "200 after 3"},
		{"so for what may be repeated", "PUT", "/", []int{503, 200}, time.Minute, "200 after 2", "200 after 2"},
		{"what is final is handed on", "GET", "/", []int{404}, time.Minute, "404 after 1", "404 after 1"},
		{"POST is no longer repeated", "POST", "/", []int{503, 200}, time.Minute, "200 after 2", "503 after 1"},
		{"500 is no longer repeated", "GET", "/", []int{500, 200}, time.Minute, "200 after 2", "500 after 1"},
		{"the last answer is an answer", "GET", "/", []int{503}, time.Minute, "error after 3", "503 after 3"},
		{"a long Retry-After is not waited for", "GET", "/asks-for-an-hour", []int{503}, 200 * time.Millisecond, "error after 1", "503 after 1"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			try := func(ctx context.Context, api *http.Client) string {
				ctx, cancel := context.WithTimeout(ctx, c.limit)
				defer cancel()
				u := serve(t, host, c.statuses...)
				got := call(ctx, t, api, c.method, "http://"+host+c.path)
				return fmt.Sprintf("%s after %d", got, u.sent.Load())
			}
			equal(t, "before", try(t.Context(), before()), c.before)
			ctx, _ := under(t, file)
			equal(t, "after", try(ctx, after()), c.after)
		})
	}
	t.Run("an outage costs a tenth, not three times as much", func(t *testing.T) {
		const calls = 30
		all := func(ctx context.Context, api *http.Client) int64 {
			u := serve(t, host, 503)
			var wait sync.WaitGroup
			for range calls {
				wait.Go(func() { call(ctx, t, api, "GET", "http://"+host+"/") })
			}
			wait.Wait()
			return u.sent.Load()
		}
		if strings.HasPrefix(file, "retryable") { // the breaker of the other ends it as well
			equal(t, "before", all(t.Context(), before()), int64(3*calls))
		}
		ctx, _ := under(t, file)
		if sent := all(ctx, after()); sent > calls+calls/10+2 {
			t.Errorf("after: %d sends for %d calls", sent, calls)
		}
	})
}

func TestRetryablehttp_before_and_after(t *testing.T) {
	t.Parallel()
	clients(t, "search.shop", "retryablehttp.yaml", migrate.RetryableBefore, migrate.RetryableAfter)
	t.Run("observed, the old client goes on as it was", func(t *testing.T) {
		ctx, f := under(t, "retryablehttp.yaml", observe)
		u := serve(t, "search.shop", 503, 503, 200)
		client := retryablehttp.NewClient()
		client.Logger, client.RetryWaitMin = nil, time.Millisecond
		equal(t, "answer", call(ctx, t, migrate.RetryableObserve(client), "GET", "http://search.shop/"), "200")
		observed(t, f, u)
	})
}

func TestFailsafe_before_and_after(t *testing.T) {
	t.Parallel()
	clients(t, "catalog.shop", "failsafe.yaml", migrate.FailsafeBefore, migrate.FailsafeAfter)
	t.Run("five failures open the breaker", func(t *testing.T) {
		for name, one := range map[string]func() (context.Context, *http.Client){
			"before": func() (context.Context, *http.Client) { return t.Context(), migrate.FailsafeBefore() },
			"after": func() (context.Context, *http.Client) {
				ctx, _ := under(t, "failsafe.yaml")
				return ctx, migrate.FailsafeAfter()
			},
		} {
			ctx, api := one()
			u := serve(t, "catalog.shop", 503)
			for range 3 {
				call(ctx, t, api, "GET", "http://catalog.shop/")
			}
			equal(t, name, u.sent.Load(), 5)
		}
	})
	t.Run("observed, the old policies go on as they were", func(t *testing.T) {
		ctx, f := under(t, "failsafe.yaml", observe)
		u := serve(t, "catalog.shop", 503, 503, 200)
		api := migrate.FailsafeObserve(failsafehttp.NewRetryPolicyBuilder().Build())
		equal(t, "answer", call(ctx, t, api, "GET", "http://catalog.shop/"), "200")
		observed(t, f, u)
	})
}

// observed checks that the three requests of one call were seen and left alone.
func observed(t *testing.T, f *policytest.Fake, u *upstream) {
	t.Helper()
	equal(t, "sends", u.sent.Load(), 3)
	for _, s := range f.Client().Endpoints() {
		if s.Endpoint == u.host { // the document names the host, and no endpoint
			equal(t, "calls seen", s.Calls, 3)
			equal(t, "retries made", s.Retries, 0)
			equal(t, "retries that would be made", s.Observed, 2)
			return
		}
	}
	t.Errorf("nothing seen of %s: %+v", u.host, f.Client().Endpoints())
}

// answer is what the service of rates said.
type answer int

func (a answer) Error() string   { return http.StatusText(int(a)) }
func (a answer) StatusCode() int { return int(a) }

func TestGobreaker_before_and_after(t *testing.T) {
	type outcome struct {
		rate float64
		sent int
		ok   bool
	}
	one := func(ctx context.Context, rates func(migrate.Rates) migrate.Rates, statuses ...int) (do func() outcome) {
		sent := 0
		call := rates(func(context.Context) (float64, error) {
			sent++
			if code := statuses[min(sent, len(statuses))-1]; code != 200 {
				return 0, answer(code)
			}
			return 1.08, nil
		})
		return func() outcome {
			before := sent
			rate, err := call(ctx)
			return outcome{rate, sent - before, err == nil}
		}
	}
	both := func(t *testing.T, check func(t *testing.T, name string, try func(statuses ...int) func() outcome)) {
		synctest.Test(t, func(t *testing.T) {
			check(t, "before", func(s ...int) func() outcome { return one(t.Context(), migrate.GobreakerBefore, s...) })
		})
		synctest.Test(t, func(t *testing.T) {
			ctx, _ := under(t, "gobreaker.yaml")
			check(t, "after", func(s ...int) func() outcome { return one(ctx, migrate.GobreakerAfter, s...) })
		})
	}
	t.Run("a hiccup is hidden", func(t *testing.T) {
		both(t, func(t *testing.T, name string, try func(...int) func() outcome) {
			equal(t, name, try(503, 503, 200)(), outcome{1.08, 3, true})
		})
	})
	t.Run("five failures open the breaker, and after 30 s it tries again", func(t *testing.T) {
		both(t, func(t *testing.T, name string, try func(...int) func() outcome) {
			call := try(503, 503, 503, 503, 503, 200)
			equal(t, name, call(), outcome{0, 3, false})
			time.Sleep(time.Minute)
			equal(t, name, call(), outcome{0, 2, false})
			equal(t, name, call(), outcome{0, 0, false})
			time.Sleep(33 * time.Second)
			equal(t, name, call(), outcome{1.08, 1, true})
		})
	})
	t.Run("who is refused by the breaker no longer waits", func(t *testing.T) {
		took := map[string]time.Duration{}
		both(t, func(_ *testing.T, name string, try func(...int) func() outcome) {
			call := try(503)
			call()
			time.Sleep(time.Minute)
			call()
			began := time.Now()
			call()
			took[name] = time.Since(began)
		})
		if took["before"] == 0 || took["after"] != 0 {
			t.Errorf("took %v", took)
		}
	})
	t.Run("what no attempt can cure is no longer repeated", func(t *testing.T) {
		both(t, func(t *testing.T, name string, try func(...int) func() outcome) {
			equal(t, name, try(404)().sent, map[string]int{"before": 3, "after": 1}[name])
		})
	})
	t.Run("observed, the old code goes on as it was", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, f := under(t, "gobreaker.yaml", observe)
			equal(t, "outcome", one(ctx, migrate.GobreakerObserve, 503, 503, 200)(), outcome{1.08, 3, true})
			s := f.Client().Endpoints()[0]
			equal(t, "calls seen", s.Calls, 3)
			equal(t, "retries that would be made", s.Observed, 2)
		})
	})
}

type dial func(target string, opts ...grpc.DialOption) (*grpc.ClientConn, error)

// check makes one call to a service that answers UNAVAILABLE so many times.
func check(ctx context.Context, t *testing.T, dial dial, fails int64) (sent int64, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	server := grpc.NewServer(grpc.UnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		if n.Add(1) <= fails {
			return nil, status.Error(codes.Unavailable, "going down")
		}
		return &healthpb.HealthCheckResponse{}, nil
	}))
	healthpb.RegisterHealthServer(server, healthpb.UnimplementedHealthServer{})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := dial(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return n.Load(), err
}

func TestGRPC_before_and_after(t *testing.T) {
	t.Parallel()
	t.Run("a hiccup is hidden", func(t *testing.T) {
		sent, err := check(t.Context(), t, migrate.GRPCBefore, 2)
		equal(t, "before", fmt.Sprint(sent, err), "3 <nil>")
		ctx, _ := under(t, "grpc.yaml")
		sent, err = check(migrate.GRPCRepeatable(ctx), t, migrate.GRPCAfter, 2)
		equal(t, "after", fmt.Sprint(sent, err), "3 <nil>")
	})
	t.Run("errors are statuses as they were", func(t *testing.T) {
		_, err := check(t.Context(), t, migrate.GRPCBefore, 9)
		equal(t, "before", status.Code(err), codes.Unavailable)
		ctx, _ := under(t, "grpc.yaml")
		sent, err := check(migrate.GRPCRepeatable(ctx), t, migrate.GRPCAfter, 9)
		equal(t, "after", status.Code(err), codes.Unavailable)
		equal(t, "sends", sent, 3)
		var stopped *policyd.Error
		equal(t, "and say why", errors.As(err, &stopped) && stopped.Code == policyd.CodeAttempts, true)
	})
	t.Run("a method that may not be safe is no longer repeated", func(t *testing.T) {
		sent, _ := check(t.Context(), t, migrate.GRPCBefore, 2)
		equal(t, "before", sent, 3)
		ctx, _ := under(t, "grpc.yaml")
		sent, _ = check(ctx, t, migrate.GRPCAfter, 2)
		equal(t, "after", sent, 1)
	})
	t.Run("an operator can turn retries off", func(t *testing.T) {
		ctx, f := under(t, "grpc.yaml")
		f.Switch("disable-retries", "shop", time.Hour)
		sent, _ := check(migrate.GRPCRepeatable(ctx), t, migrate.GRPCAfter, 2)
		equal(t, "after", sent, 1)
	})
	t.Run("observed, the channel goes on as it was", func(t *testing.T) {
		ctx, f := under(t, "grpc.yaml", observe)
		sent, err := check(ctx, t, migrate.GRPCObserve, 2)
		equal(t, "observed", fmt.Sprint(sent, err), "3 <nil>")
		equal(t, "calls seen", f.Client().Endpoints()[0].Calls, 1)
	})
}
