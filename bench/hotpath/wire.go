// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/hashicorp/go-retryablehttp"
	policyd "github.com/policyd/policyd/sdk/go"
	"github.com/policyd/policyd/sdk/go/policygrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"
)

type inMemory int

// RoundTrip answers at once, as a transport without a network would.
func (status inMemory) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(status), Body: http.NoBody, Request: req}, nil
}

// addHTTP adds transports around one that answers from memory.
func (l *lab) addHTTP() error {
	c, err := l.newClient("{}")
	if err != nil {
		return err
	}
	limited, err := l.newClient(`{"attempt": "1s"}`)
	if err != nil {
		return err
	}
	broken, err := l.newClient("{}")
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://payments.shop/v1/charges/17", nil)
	if err != nil {
		return err
	}
	get := func(rt http.RoundTripper) func() error {
		return func() error {
			resp, err := rt.RoundTrip(req)
			if err != nil {
				return err
			}
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("status %d", resp.StatusCode)
			}
			return resp.Body.Close()
		}
	}
	ok := inMemory(http.StatusOK)
	l.add(httpBare, get(ok))
	l.both(httpPolicyd, get(c.Transport(ok)))
	plain := retryablehttp.NewClient()
	plain.Logger, plain.HTTPClient = nil, &http.Client{Transport: ok}
	l.both("http: go-retryablehttp", get(&retryablehttp.RoundTripper{Client: plain}))
	l.both("http: failsafehttp, retry + breaker", get(failsafehttp.NewRoundTripper(ok, failsafehttp.NewRetryPolicyBuilder().Build(),
		circuitbreaker.NewBuilder[*http.Response]().WithFailureRateThreshold(0.5, 20, 10*time.Second).Build())))
	l.add("http: policyd.Transport, timeouts.attempt", get(limited.Transport(ok)))
	down := broken.Transport(inMemory(http.StatusInternalServerError))
	for range 5 {
		_ = get(down)()
	}
	const name = "http: policyd.Transport, refused"
	l.add(name, func() error {
		err := get(down)()
		var e *policyd.Error
		if !errors.As(err, &e) || e.Code != policyd.CodeBreaker {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	})
	return nil
}

// ownRetries is gRPC's own policy with the same number of attempts.
const ownRetries = `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.2s","maxBackoff":"2s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`

// addGRPC adds unary calls over a connection in memory to a server of the same process.
func (l *lab) addGRPC() error {
	c, err := l.newClient("{}")
	if err != nil {
		return err
	}
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	l.closers = append(l.closers, server.Stop)
	for _, s := range []struct {
		name string
		opts []grpc.DialOption
	}{
		{"grpc: bare, without retries", []grpc.DialOption{grpc.WithDisableRetry()}},
		{grpcOwn, []grpc.DialOption{grpc.WithDefaultServiceConfig(ownRetries)}},
		{grpcPolicyd, policygrpc.ClientDialOptions(c)},
	} {
		conn, err := grpc.NewClient("passthrough:///payments.shop", append(s.opts,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
		if err != nil {
			return err
		}
		l.closers = append(l.closers, func() { _ = conn.Close() })
		client := grpc_health_v1.NewHealthClient(conn)
		ctx, in := context.Background(), &grpc_health_v1.HealthCheckRequest{}
		l.add(s.name, func() error {
			_, err := client.Check(ctx, in)
			return err
		})
	}
	return nil
}
