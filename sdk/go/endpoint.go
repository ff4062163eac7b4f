// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Bounds of what a client keeps per endpoint, however many names or hosts calls have.
const (
	maxNamed     = 20_000
	maxUnmatched = 1_000
)

// endpoint is what a client keeps for one target of calls: the engine's state, which
// outlives policies, and whose policy it obeys.
type endpoint struct {
	*engine.Endpoint
	name string
	// unmatched: no endpoint matches the call; name is its host, or its service.
	unmatched bool

	toldUnsafe atomic.Bool // that failed calls are not repeated
	// calls that a fallback answered, after they failed or were refused
	fellBack, fellBackRefused atomic.Uint64

	// guarded by Client.mu; the scope of one that is not unmatched never changes
	scope    engine.Scope
	reported totals // what reports have told

	hash uint64 // of the name, set by the table
	// used is the tick of the table at the last look-up.
	used atomic.Uint64
}

// endpoint returns the state of a named endpoint and creates it at its first use. It takes
// no lock for a known one. The first call of all starts the watch.
func (c *Client) endpoint(name string) *endpoint {
	name = clipName(name)
	if e := c.named.find(name); e != nil {
		return e
	}
	return c.addEndpoint(c.named, name, c.scopeOf(name))
}

// unmatched returns the state of calls that match no endpoint; it is kept per host.
func (c *Client) unmatched(host string) *endpoint {
	host = clipName(host)
	if e := c.hosts.find(host); e != nil {
		return e
	}
	return c.addEndpoint(c.hosts, host, c.current.Load().matcher.HTTP("", host, noPath).Scope)
}

// match returns the endpoint of an HTTP call. path is the escaped path.
func (c *Client) match(method, host, path string) *endpoint {
	if found := c.current.Load().matcher.HTTP(method, host, path); found.Matched {
		return c.endpoint(string(found.Scope))
	}
	return c.unmatched(host)
}

// matchGRPC returns the endpoint of a gRPC call. A call that only a service's document
// names is kept under that service, any other under its host.
func (c *Client) matchGRPC(fullMethod, host string) *endpoint {
	found := c.current.Load().matcher.GRPC(fullMethod, host)
	switch name := string(found.Scope); {
	case found.Matched:
		return c.endpoint(name)
	case found.Scope.Level() == engine.LevelService:
		if e := c.hosts.find(name); e != nil {
			return e
		}
		return c.addEndpoint(c.hosts, name, found.Scope)
	default:
		return c.unmatched(host)
	}
}

// authority is the host of a URL as breaker.per: host tells hosts apart: in lower case, with
// its port unless that is the scheme's own.
func authority(u *url.URL) string {
	host := u.Host
	switch u.Scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return strings.ToLower(clipName(host))
}

// clipName keeps what a name can take of memory small.
func clipName(name string) string { return name[:min(len(name), 253)] }

// changed returns a channel that is closed when other policies or switches come into force.
// Take it before the decision that the wait follows.
func (c *Client) changed() <-chan struct{} { return c.current.Load().replaced }

// instant returns a moment on the time line of the endpoints.
func (c *Client) instant(t time.Time) engine.Instant { return engine.Instant(t.Sub(c.origin)) }

// revision returns the revision of the policies in force, 0 for none.
func (c *Client) revision() int64 { return c.current.Load().revision }
