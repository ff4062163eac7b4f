// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"time"

	"google.golang.org/grpc"

	"github.com/policyd/policyd/sdk/go/reconnect"
)

// WithDialOptions adds options to the connection, for networks other than TCP.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(c *config) { c.dialOptions = append(c.dialOptions, options...) }
}

// SetRandom replaces the source of random waits.
func (c *Client) SetRandom(share float64) { c.random = func() float64 { return share } }

// SetRandomFunc does so with a function of the test.
func (c *Client) SetRandomFunc(f func() float64) { c.random = f }

// Changed is the channel on which waits wake.
func (c *Client) Changed() <-chan struct{} { return c.changed() }

// Touch uses an endpoint, as a call does.
func (c *Client) Touch(name string) { c.endpoint(name) }

// TouchHost uses the state of a host that matches no endpoint.
func (c *Client) TouchHost(host string) { c.unmatched(host) }

// Kept reports whether the state of a host is still there.
func (c *Client) Kept(host string) bool { return c.hosts.find(host) != nil }

// ScopeOfHost is whose policy calls to an unmatched host obey.
func (c *Client) ScopeOfHost(host string) string {
	e := c.unmatched(host)
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(e.scope)
}

// Match names the endpoint of an HTTP call.
func (c *Client) Match(method, host, path string) string { return c.match(method, host, path).name }

// MatchGRPC names the endpoint of a gRPC call.
func (c *Client) MatchGRPC(fullMethod, host string) string { return c.matchGRPC(fullMethod, host).name }

// ParseEnvironment builds the configuration from an environment and describes it.
func ParseEnvironment(env map[string]string, opts ...Option) (addrs, targets []string, namespace, service, instance string, err error) {
	c, err := newConfig(func(name string) (string, bool) { v, ok := env[name]; return v, ok }, opts)
	return c.addrs, scopeNames(c.targets), c.namespace, c.service, c.instance, err
}

// WaitAfter returns the wait after the n-th stream in a row that ended after up.
func (r *Reconnect) WaitAfter(err error, up time.Duration, comeBack time.Time, share float64) time.Duration {
	return r.After(reconnect.Ended{Err: err, Refused: refused(err), Up: up, ComeBack: comeBack}, func() float64 { return share })
}

// Reconnect is the policy of reconnecting.
type Reconnect struct{ reconnect.Wait }
