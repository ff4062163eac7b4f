// SPDX-License-Identifier: Apache-2.0

package policyd

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
	"github.com/policyd/policyd/sdk/go/internal/state"
)

// Handler serves a page for people, or JSON with Accept: application/json or ?format=json,
// at any path it is mounted on (for example /debug/policyz): status, kill switches,
// breakers, budgets and counts, the last decisions, and with ?endpoint=NAME its effective
// policy. It shows host and endpoint names, so mount it where only operators get; it shows
// no token. GET and HEAD only.
func (c *Client) Handler() http.Handler {
	policy := contentSecurityPolicy()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		p := c.page(r.URL.Query().Get("endpoint"), time.Now())
		var body bytes.Buffer
		kind := "text/html; charset=utf-8"
		var err error
		if wantsJSON(r) {
			kind = "application/json"
			encoder := json.NewEncoder(&body)
			encoder.SetIndent("", "  ")
			err = encoder.Encode(p)
		} else {
			err = pageTemplate.Execute(&body, p)
		}
		if err != nil {
			http.Error(w, "cannot write the page", http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", kind)
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", policy)
		_, _ = w.Write(body.Bytes())
	})
}

func wantsJSON(r *http.Request) bool {
	if format := r.URL.Query().Get("format"); format != "" {
		return format == "json"
	}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

// maxShown bounds the endpoints on a page.
const maxShown = 1_000

// page is what the handler shows, and its JSON form.
type page struct {
	SDK       string         `json:"sdk"`
	Instance  string         `json:"instance"`
	Namespace string         `json:"namespace,omitempty"`
	Service   string         `json:"service,omitempty"`
	Mode      Mode           `json:"mode"`
	Status    pageStatus     `json:"status"`
	Endpoints []pageEndpoint `json:"endpoints"`
	Omitted   int            `json:"omitted_endpoints,omitempty"`
	Decisions []pageDecision `json:"last_decisions"`
	Effective *pageEffective `json:"effective,omitempty"`
}

type pageStatus struct {
	State    State        `json:"state"`
	Since    time.Time    `json:"since"`
	Revision int64        `json:"revision"`
	Offered  int64        `json:"offered"`
	AsOf     *time.Time   `json:"as_of,omitempty"`
	Age      string       `json:"age,omitempty"`
	Source   string       `json:"source"`
	LastErr  string       `json:"last_error,omitempty"`
	Switches []pageSwitch `json:"switches"`
}

type pageSwitch struct {
	ID        string    `json:"id"`
	Action    string    `json:"action"`
	Scope     string    `json:"scope"`
	Reason    string    `json:"reason"`
	Incident  string    `json:"incident,omitempty"`
	ExpiresAt time.Time `json:"expires_at"`
}

type pageEndpoint struct {
	Name       string            `json:"endpoint"`
	Unmatched  bool              `json:"unmatched,omitempty"`
	Scope      string            `json:"scope"`
	Breaker    string            `json:"breaker"`
	Rule       string            `json:"rule,omitempty"`
	Until      *time.Time        `json:"until,omitempty"`
	BudgetLeft int64             `json:"budget_left"`
	BudgetUsed int64             `json:"budget_used"`
	GateOpen   bool              `json:"success_gate_open"`
	Calls      uint64            `json:"calls"`
	Attempts   uint64            `json:"attempts"`
	Rescued    uint64            `json:"rescued"`
	Failed     uint64            `json:"failed"`
	Rejected   uint64            `json:"rejected"`
	Suppressed map[string]uint64 `json:"suppressed,omitempty"`
}

// pageDecision is a call that was refused or not repeated.
type pageDecision struct {
	At       time.Time `json:"at"`
	Endpoint string    `json:"endpoint"`
	Code     Code      `json:"code"`
	Attempts int       `json:"attempts"`
	Status   int       `json:"status,omitempty"` // of the last answer
	Observed bool      `json:"observed,omitempty"`
	Text     string    `json:"text"`
}

type pageEffective struct {
	Endpoint string      `json:"endpoint"`
	Revision int64       `json:"revision"`
	Values   []pageValue `json:"values"`
}

type pageValue struct {
	Path   string       `json:"path"`
	Value  any          `json:"value"`
	From   string       `json:"from"`
	Shadow []pageShadow `json:"shadow,omitempty"`
}

type pageShadow struct {
	Value any    `json:"value"`
	From  string `json:"from"`
}

func (c *Client) page(endpoint string, now time.Time) page {
	s := c.Status()
	p := page{
		SDK: Version, Instance: c.cfg.instance, Namespace: c.cfg.namespace, Service: c.cfg.service, Mode: c.cfg.mode,
		Status: pageStatus{
			State: s.State, Since: s.Since, Revision: s.Revision, Offered: s.Offered, Source: s.Source,
			Switches: make([]pageSwitch, 0, len(s.Switches)),
		},
	}
	if !s.AsOf.IsZero() {
		p.Status.AsOf, p.Status.Age = &s.AsOf, age(now.Sub(s.AsOf))
	}
	if s.LastErr != nil {
		p.Status.LastErr = state.Printable(s.LastErr)
	}
	for _, sw := range s.Switches {
		p.Status.Switches = append(p.Status.Switches, pageSwitch(sw))
	}
	p.Endpoints, p.Omitted = c.pageEndpoints(now)
	p.Decisions = []pageDecision{}
	for _, d := range c.recent.list() {
		p.Decisions = append(p.Decisions, pageDecision{
			At: d.at, Endpoint: d.err.Endpoint, Code: d.err.Code, Attempts: d.err.Attempts, Status: d.status,
			Observed: d.observed, Text: d.err.Error(),
		})
	}
	if endpoint != "" {
		p.Effective = pageEffectiveOf(c.Effective(clipName(endpoint)))
	}
	return p
}

// pageEndpoints returns the endpoints with most calls, and how many are left out.
func (c *Client) pageEndpoints(now time.Time) (shown []pageEndpoint, omitted int) {
	c.mu.Lock()
	all := slices.Concat(c.named.all(), c.hosts.all())
	scopes := make([]engine.Scope, len(all))
	for i, e := range all {
		scopes[i] = e.scope
	}
	c.mu.Unlock()
	shown = make([]pageEndpoint, 0, len(all))
	for i, e := range all {
		stats := e.Stats(c.instant(now))
		c.breakerTurned(e, stats.Change)
		line := pageEndpoint{
			Name: e.name, Unmatched: e.unmatched, Scope: string(scopes[i]),
			Breaker: stats.Breaker.State.String(), Rule: stats.Breaker.Rule.String(),
			BudgetLeft: stats.Budget.Left, BudgetUsed: stats.Budget.Used, GateOpen: stats.Budget.GateOpen,
			Calls: stats.Calls, Attempts: stats.Attempts(), Rescued: stats.Rescued, Failed: stats.Failed, Rejected: stats.Rejected,
		}
		if until := stats.Breaker.Until; until != 0 && until != engine.Never {
			at := c.origin.Add(time.Duration(until)).Round(0)
			line.Until = &at
		}
		for code, n := range totalsOf(&stats).suppressed {
			if line.Suppressed == nil {
				line.Suppressed = map[string]uint64{}
			}
			line.Suppressed[string(code)] = n
		}
		shown = append(shown, line)
	}
	slices.SortFunc(shown, func(a, b pageEndpoint) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Name, b.Name))
	})
	omitted = max(0, len(shown)-maxShown)
	return shown[:len(shown)-omitted], omitted
}

func pageEffectiveOf(e Effective) *pageEffective {
	out := &pageEffective{Endpoint: e.Endpoint, Revision: e.Revision}
	known := map[string]bool{}
	add := func(path string) {
		v, ok := e.Values[path]
		if !ok || known[path] {
			return
		}
		known[path] = true
		line := pageValue{Path: path, Value: written(v.Value), From: v.From}
		for _, s := range v.Shadow {
			line.Shadow = append(line.Shadow, pageShadow{Value: written(s.Value), From: s.From})
		}
		out.Values = append(out.Values, line)
	}
	for _, path := range []string{"switch.calls", "switch.retries", "breaker.forced"} {
		add(path)
	}
	for _, f := range engine.Fields() {
		add(f.Path())
	}
	return out
}

// written is a value as documents have it.
func written(v any) any {
	if d, ok := v.(time.Duration); ok {
		return engine.FormatDuration(d)
	}
	return v
}

const pageStyle = `body{font:15px/1.45 system-ui,sans-serif;margin:2rem;max-width:80rem}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{text-align:left;padding:.2rem .9rem .2rem 0;border-bottom:1px solid #8884}
td.n{text-align:right;font-variant-numeric:tabular-nums}code{font-size:.95em}`

func contentSecurityPolicy() string {
	sum := sha256.Sum256([]byte(pageStyle))
	return fmt.Sprintf("default-src 'none'; style-src 'sha256-%s'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
		base64.StdEncoding.EncodeToString(sum[:]))
}

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{ //nolint:gochecknoglobals // compiled once
	"style": func() template.CSS { return pageStyle },
	"at":    func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>policyd: {{.Status.State}}</title><style>{{style}}</style></head><body>
<h1>policyd: {{.Status.State}}</h1>
<table>
<tr><th>Since</th><td>{{at .Status.Since}}</td></tr>
<tr><th>Revision in force</th><td>{{.Status.Revision}}{{if ne .Status.Revision .Status.Offered}} (offered {{.Status.Offered}}){{end}}</td></tr>
<tr><th>Source</th><td>{{.Status.Source}}{{with .Status.AsOf}}, confirmed {{at .}} ({{$.Status.Age}} ago){{end}}</td></tr>
{{with .Status.LastErr}}<tr><th>Last error</th><td>{{.}}</td></tr>{{end}}
<tr><th>Instance</th><td>{{.Instance}} {{with .Namespace}}{{.}}{{end}}{{with .Service}}/{{.}}{{end}}</td></tr>
<tr><th>Mode</th><td>{{.Mode}}</td></tr><tr><th>SDK</th><td>go {{.SDK}}</td></tr>
</table>
<h2>Kill switches</h2>
{{if .Status.Switches}}<table><tr><th>Id</th><th>Action</th><th>Scope</th><th>Until</th><th>Incident</th><th>Reason</th></tr>
{{range .Status.Switches}}<tr><td>{{.ID}}</td><td>{{.Action}}</td><td>{{.Scope}}</td><td>{{at .ExpiresAt}}</td><td>{{.Incident}}</td><td>{{.Reason}}</td></tr>
{{end}}</table>{{else}}<p>None in force here.</p>{{end}}
{{with .Effective}}<h2>Effective policy of {{.Endpoint}}</h2>
<table><tr><th>Setting</th><th>Value</th><th>From</th><th>Hides</th></tr>
{{range .Values}}<tr><td><code>{{.Path}}</code></td><td>{{.Value}}</td><td>{{.From}}</td><td>{{range $i, $s := .Shadow}}{{if $i}}, {{end}}{{$s.Value}} ({{$s.From}}){{end}}</td></tr>
{{end}}</table>{{end}}
<h2>Endpoints</h2>
{{if .Endpoints}}<table><tr><th>Endpoint</th><th>Policy of</th><th>Breaker</th><th>Retries left</th><th>Calls</th><th>Attempts</th><th>Rescued</th><th>Failed</th><th>Refused</th><th>Retries not made</th></tr>
{{range .Endpoints}}<tr><td><a href="?endpoint={{.Name}}">{{.Name}}</a>{{if .Unmatched}} (unmatched){{end}}</td><td>{{.Scope}}</td>
<td>{{.Breaker}}{{with .Rule}} by {{.}}{{end}}{{with .Until}} until {{at .}}{{end}}</td>
<td class="n">{{.BudgetLeft}}</td><td class="n">{{.Calls}}</td><td class="n">{{.Attempts}}</td><td class="n">{{.Rescued}}</td><td class="n">{{.Failed}}</td><td class="n">{{.Rejected}}</td>
<td>{{range $code, $n := .Suppressed}}{{$code}} {{$n}} {{end}}</td></tr>
{{end}}</table>{{with .Omitted}}<p>{{.}} more with fewer calls.</p>{{end}}{{else}}<p>No call yet.</p>{{end}}
<h2>Last decisions</h2>
{{if .Decisions}}<table><tr><th>At</th><th>Decision</th><th>Last answer</th></tr>
{{range .Decisions}}<tr><td>{{at .At}}</td><td>{{.Text}}{{if .Observed}} (observed only){{end}}</td><td>{{with .Status}}{{.}}{{end}}</td></tr>
{{end}}</table>{{else}}<p>No call was refused or left without a retry.</p>{{end}}
</body></html>
`))
