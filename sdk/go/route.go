// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/replay"
)

// TransportOption configures one transport.
type TransportOption func(*transportConfig)

type transportConfig struct {
	routes    []engine.Document // as Route has them, perhaps not valid
	nameFunc  func(*http.Request) string
	maxReplay int64
	static    bool // StaticFallback
}

// Route names the endpoint of the requests that match method and pattern, for example
// Route("POST", "/v1/charges/{id}", "shop/payments/charges.create"). Patterns are those of
// net/http.ServeMux and may start with a host; an empty method means any. Among several
// routes the most specific wins. Routes come before [NameFunc], and that before the
// patterns of policies. A route that is not valid is logged and left out.
func Route(method, pattern, endpoint string) TransportOption {
	return func(c *transportConfig) {
		settings := engine.Settings{}
		host, path := "", pattern
		if i := strings.IndexByte(pattern, '/'); i > 0 {
			host, path = pattern[:i], pattern[i:]
		}
		for field, text := range map[engine.Field]string{
			engine.MatchHTTPMethod: method, engine.MatchHTTPHost: host, engine.MatchHTTPPath: path,
		} {
			if text != "" {
				settings[field] = engine.Text(text)
			}
		}
		c.routes = append(c.routes, engine.Document{Scope: engine.Scope(endpoint), Settings: settings})
	}
}

// NameFunc names endpoints itself. It is called once per request, concurrently, and must
// not change the request. "" leaves the request to the patterns of policies; so does a
// name that is not a scope of the form namespace/service/endpoint.
func NameFunc(fn func(*http.Request) string) TransportOption {
	return func(c *transportConfig) { c.nameFunc = fn }
}

// MaxReplayBody caps the request body, in bytes, that is kept in memory for a repeat when
// the request has no GetBody (default 1 MiB). It is kept only while the call may be
// repeated, and as it is sent. A longer body is sent once, and a failure of that attempt
// is marked body_not_replayable.
func MaxReplayBody(bytes int64) TransportOption {
	return func(c *transportConfig) { c.maxReplay = max(bytes, 0) }
}

// routeTable finds the endpoint that a transport's own routes name.
type routeTable struct {
	once    sync.Once
	matcher *engine.Matcher
}

// build leaves out and logs what is not valid: a transport has no other way to say so.
func (r *routeTable) build(routes []engine.Document, log *slog.Logger) {
	valid := make([]engine.Document, 0, len(routes))
	for _, route := range routes {
		if err := checkRoute(route); err != nil {
			log.Error("route is not valid and left out", "endpoint", string(route.Scope), "error", err)
			continue
		}
		valid = append(valid, route)
	}
	r.matcher = engine.NewMatcher(valid, "")
}

func checkRoute(route engine.Document) error {
	scope, err := engine.ParseScope(string(route.Scope))
	if err != nil {
		return err
	}
	if scope.Level() != engine.LevelEndpoint {
		return fmt.Errorf("%q is not namespace/service/endpoint", scope)
	}
	for _, v := range engine.Validate(scope, route.Settings) {
		return fmt.Errorf("%s %q: %s", v.Path, v.Value, v.Rule)
	}
	return nil
}

// endpoint finds the endpoint of a request: routes, then NameFunc, then policies.
func (t *transport) endpoint(c *Client, req *http.Request) *endpoint {
	host, path := req.URL.Host, req.URL.EscapedPath()
	if len(t.cfg.routes) > 0 {
		t.routes.once.Do(func() { t.routes.build(t.cfg.routes, c.cfg.logger) })
		if found := t.routes.matcher.HTTP(req.Method, host, path); found.Matched {
			return c.endpoint(string(found.Scope))
		}
	}
	if t.cfg.nameFunc != nil {
		if name := replay.OrClose(req, t.cfg.nameFunc); name != "" {
			if ep := c.named.find(name); ep != nil {
				return ep
			}
			if scope, err := engine.ParseScope(name); err == nil && scope.Level() == engine.LevelEndpoint {
				return c.endpoint(name)
			}
		}
	}
	return c.match(req.Method, host, path)
}
