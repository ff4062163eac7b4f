// SPDX-License-Identifier: Apache-2.0

// Package page writes what a client knows of itself for people, and as JSON.
package page

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// Page is what is shown, and its JSON form.
type Page struct {
	SDK       string     `json:"sdk"`
	Instance  string     `json:"instance"`
	Namespace string     `json:"namespace,omitempty"`
	Service   string     `json:"service,omitempty"`
	Mode      string     `json:"mode"`
	Status    Status     `json:"status"`
	Endpoints []Endpoint `json:"endpoints"`
	Omitted   int        `json:"omitted_endpoints,omitempty"`
	Decisions []Decision `json:"last_decisions"`
	Effective *Effective `json:"effective,omitempty"`
}

// Status is the link to policyd and what is in force.
type Status struct {
	State    string     `json:"state"`
	Since    time.Time  `json:"since"`
	Revision int64      `json:"revision"`
	Offered  int64      `json:"offered"`
	AsOf     *time.Time `json:"as_of,omitempty"`
	Age      string     `json:"age,omitempty"`
	Source   string     `json:"source"`
	LastErr  string     `json:"last_error,omitempty"`
	Switches []Switch   `json:"switches"`
}

// Switch is a kill switch in force.
type Switch struct {
	ID        string    `json:"id"`
	Action    string    `json:"action"`
	Scope     string    `json:"scope"`
	Reason    string    `json:"reason"`
	Incident  string    `json:"incident,omitempty"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Endpoint is one endpoint's state and counts.
type Endpoint struct {
	Name      string     `json:"endpoint"`
	Unmatched bool       `json:"unmatched,omitempty"`
	Scope     string     `json:"scope"`
	Breaker   string     `json:"breaker"`
	Rule      string     `json:"rule,omitempty"`
	Until     *time.Time `json:"until,omitempty"`
	// Hosts whose own breaker does not let everything through.
	Hosts        []Host            `json:"hosts,omitempty"`
	OmittedHosts int               `json:"omitted_hosts,omitempty"`
	BudgetLeft   int64             `json:"budget_left"`
	BudgetUsed   int64             `json:"budget_used"`
	GateOpen     bool              `json:"success_gate_open"`
	Calls        uint64            `json:"calls"`
	Attempts     uint64            `json:"attempts"`
	Rescued      uint64            `json:"rescued"`
	Failed       uint64            `json:"failed"`
	Rejected     uint64            `json:"rejected"`
	Suppressed   map[string]uint64 `json:"suppressed,omitempty"`
}

// Host is the breaker of one host of an endpoint.
type Host struct {
	Host    string     `json:"host"`
	Breaker string     `json:"breaker"`
	Rule    string     `json:"rule,omitempty"`
	Until   *time.Time `json:"until,omitempty"`
}

// Decision is a call that was refused or not repeated.
type Decision struct {
	At       time.Time `json:"at"`
	Endpoint string    `json:"endpoint"`
	Code     string    `json:"code"`
	Attempts int       `json:"attempts"`
	Status   int       `json:"status,omitempty"` // of the last answer
	Observed bool      `json:"observed,omitempty"`
	Text     string    `json:"text"`
}

// Effective is a merged policy.
type Effective struct {
	Endpoint string  `json:"endpoint"`
	Revision int64   `json:"revision"`
	Values   []Value `json:"values"`
}

// Value is a setting and where it comes from.
type Value struct {
	Path   string   `json:"path"`
	Value  any      `json:"value"`
	From   string   `json:"from"`
	Shadow []Shadow `json:"shadow,omitempty"`
}

// Shadow is a value that another one hides.
type Shadow struct {
	Value any    `json:"value"`
	From  string `json:"from"`
}

// Serve writes the page that make returns for the endpoint that a request names, "" for none.
func Serve(make func(endpoint string) Page) http.Handler {
	policy := contentSecurityPolicy()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		p := make(r.URL.Query().Get("endpoint"))
		var body bytes.Buffer
		kind := "text/html; charset=utf-8"
		var err error
		if wantsJSON(r) {
			kind = "application/json"
			encoder := json.NewEncoder(&body)
			encoder.SetIndent("", "  ")
			err = encoder.Encode(p)
		} else {
			err = tmpl.Execute(&body, p)
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

// Written is a value as documents have it.
func Written(v any) any {
	if d, ok := v.(time.Duration); ok {
		return engine.FormatDuration(d)
	}
	return v
}

const style = `body{font:15px/1.45 system-ui,sans-serif;margin:2rem;max-width:80rem}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{text-align:left;padding:.2rem .9rem .2rem 0;border-bottom:1px solid #8884}
td.n{text-align:right;font-variant-numeric:tabular-nums}code{font-size:.95em}`

func contentSecurityPolicy() string {
	sum := sha256.Sum256([]byte(style))
	return fmt.Sprintf("default-src 'none'; style-src 'sha256-%s'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
		base64.StdEncoding.EncodeToString(sum[:]))
}

var tmpl = template.Must(template.New("page").Funcs(template.FuncMap{ //nolint:gochecknoglobals // compiled once
	"style": func() template.CSS { return style },
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
<td>{{.Breaker}}{{with .Rule}} by {{.}}{{end}}{{with .Until}} until {{at .}}{{end}}
{{- range .Hosts}}<br>{{.Host}}: {{.Breaker}}{{with .Until}} until {{at .}}{{end}}{{end}}{{with .OmittedHosts}}<br>{{.}} more hosts{{end}}</td>
<td class="n">{{.BudgetLeft}}</td><td class="n">{{.Calls}}</td><td class="n">{{.Attempts}}</td><td class="n">{{.Rescued}}</td><td class="n">{{.Failed}}</td><td class="n">{{.Rejected}}</td>
<td>{{range $code, $n := .Suppressed}}{{$code}} {{$n}} {{end}}</td></tr>
{{end}}</table>{{with .Omitted}}<p>{{.}} more with fewer calls.</p>{{end}}{{else}}<p>No call yet.</p>{{end}}
<h2>Last decisions</h2>
{{if .Decisions}}<table><tr><th>At</th><th>Decision</th><th>Last answer</th></tr>
{{range .Decisions}}<tr><td>{{at .At}}</td><td>{{.Text}}{{if .Observed}} (observed only){{end}}</td><td>{{with .Status}}{{.}}{{end}}</td></tr>
{{end}}</table>{{else}}<p>No call was refused or left without a retry.</p>{{end}}
</body></html>
`))
