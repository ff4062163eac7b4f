// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/policyd/policyd/internal/policy"
	"github.com/policyd/policyd/sdk/go/engine"
)

// Records are documents in the form that operators write, so that a record can be read,
// compared and applied again.

const apiVersion = "policyd/v1"

type record struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   recordMetadata `json:"metadata"`
	Spec       map[string]any `json:"spec"`
	Status     map[string]any `json:"status,omitempty"`
}

type recordMetadata struct {
	Scope       string            `json:"scope,omitempty"`
	Name        string            `json:"name,omitempty"`
	Owner       string            `json:"owner,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	ManagedBy   string            `json:"managedBy,omitempty"`
}

// policyRecord returns p as JSON, "" for nil.
func policyRecord(p *policy.Policy) string {
	if p == nil {
		return ""
	}
	return encode(record{
		APIVersion: apiVersion,
		Kind:       "RetryPolicy",
		Metadata: recordMetadata{
			Scope: string(p.Scope), Owner: p.Metadata.Owner, Labels: p.Metadata.Labels,
			Annotations: p.Metadata.Annotations, ManagedBy: p.Metadata.ManagedBy,
		},
		Spec: nest(p.Settings),
	})
}

// nest turns paths into objects: "backoff.base" becomes {"backoff": {"base": …}}.
func nest(settings engine.Settings) map[string]any {
	root := make(map[string]any)
	for field, value := range settings {
		at, path := root, strings.Split(field.Path(), ".")
		for _, block := range path[:len(path)-1] {
			next, ok := at[block].(map[string]any)
			if !ok {
				next = make(map[string]any)
				at[block] = next
			}
			at = next
		}
		at[path[len(path)-1]] = plain(field, value)
	}
	return root
}

func plain(field engine.Field, v engine.Value) any {
	switch v.Kind {
	case engine.KindBool:
		return v.True()
	case engine.KindInt, engine.KindDecimal:
		return json.Number(v.String())
	case engine.KindSet:
		items := make([]any, len(v.Set))
		for i, item := range v.Set {
			items[i] = item
			if n, err := strconv.Atoi(item); err == nil && field == engine.RetryOnHTTP {
				items[i] = n
			}
		}
		return items
	case engine.KindDuration, engine.KindEnum, engine.KindText:
		return v.String()
	}
	return v.String()
}

// switchRecord returns sw as JSON, "" for nil.
func switchRecord(sw *policy.Switch) string {
	if sw == nil {
		return ""
	}
	spec := map[string]any{
		"action":    string(sw.Action),
		"scope":     string(sw.Scope),
		"expiresAt": sw.Ends.UTC().Format(time.RFC3339Nano),
		"reason":    sw.Reason,
		"restore":   map[string]any{"over": engine.FormatDuration(sw.Restore)},
	}
	if len(sw.Except) > 0 {
		spec["except"] = sw.Except
	}
	if sw.Criticality != engine.CriticalityUnspecified {
		spec["criticality"] = sw.Criticality.String()
	}
	if sw.Percent != allInstances {
		spec["percent"] = sw.Percent
	}
	if sw.Incident != "" {
		spec["incident"] = sw.Incident
	}
	switch sw.Action {
	case engine.TightenBudget:
		spec["factor"] = json.Number(engine.Micro(sw.Factor).String())
	case engine.ForceOpen:
		spec["admit"] = json.Number(engine.Micro(sw.Admit).String())
	case engine.DisableRetries, engine.ForceClosed, engine.DisableHedging:
	}
	status := map[string]any{"phase": string(sw.Phase)}
	if !sw.EndedAt.IsZero() {
		status["endedAt"] = sw.EndedAt.UTC().Format(time.RFC3339Nano)
	}
	if sw.Drill {
		status["drill"] = true
	}
	return encode(record{
		APIVersion: apiVersion, Kind: "KillSwitch",
		Metadata: recordMetadata{Name: sw.ID}, Spec: spec, Status: status,
	})
}

func encode(r record) string {
	text, err := json.Marshal(r)
	if err != nil {
		// Only numbers could fail, and they are written by Value.String.
		return `{"error":` + strconv.Quote(err.Error()) + `}`
	}
	return string(text)
}
