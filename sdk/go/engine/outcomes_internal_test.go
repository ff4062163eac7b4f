// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type outcomeVector struct {
	Name     string
	Settings map[string][]string // lists alone
	Keyed    bool
	Outcome  string
	Counts   string
	Retry    bool
}

func TestOutcomes_vectors(t *testing.T) {
	var vectors struct {
		BuiltIn []outcomeVector `json:"built-in"`
		Cases   []outcomeVector
		Codes   []struct {
			Code                         Code
			GRPC                         any
			Sentinel, Temporary, Timeout bool // of the error in front of it
		}
	}
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "spec", "vectors", "outcomes.json"))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&vectors); err != nil {
		t.Fatal(err)
	}
	for _, c := range append(vectors.BuiltIn, vectors.Cases...) {
		settings := Settings{}
		for path, list := range c.Settings {
			f, ok := FieldByPath(path)
			if !ok {
				t.Fatalf("no setting %q", path)
			}
			settings[f] = Set(list...)
		}
		p := Compile(Merge(Global, []Document{{Scope: Global, Settings: settings}}))
		o := outcomeOf(t, c.Outcome)
		class, retry := o.classify(&p, c.Keyed)
		counts := [...]string{Success: "success", Failure: "failure", Refused: "refused", Neutral: "neutral"}[class]
		if counts != c.Counts || retry != c.Retry {
			t.Errorf("%s %s: %s, retry %v", c.Name, c.Outcome, counts, retry)
		}
	}
	all := Codes()
	if len(vectors.Codes) != len(all) {
		t.Fatalf("%d codes, want %d", len(vectors.Codes), len(all))
	}
	for i, c := range vectors.Codes {
		if c.Code != all[i] {
			t.Errorf("code %d in the order of blame is %s, want %s", i+1, all[i], c.Code)
		}
	}
}

func outcomeOf(t *testing.T, text string) Outcome {
	t.Helper()
	word, _, _ := strings.Cut(text, " ")
	var o Outcome
	switch word {
	case "http", "grpc":
		if o.Kind = OutcomeHTTP; word == "grpc" {
			o.Kind = OutcomeGRPC
		}
		if _, err := fmt.Sscan(text[len(word):], &o.Code); err != nil {
			t.Fatal(text)
		}
		return o
	case "connect", "reset", "timeout":
		return Outcome{Kind: OutcomeNetwork, Network: map[string]NetworkFailure{"connect": NetworkConnect, "reset": NetworkReset, "timeout": NetworkTimeout}[word]}
	}
	kind, ok := map[string]OutcomeKind{
		"ok": OutcomeOK, "error": OutcomeError, "retryable": OutcomeRetryable,
		"permanent": OutcomePermanent, "cancelled": OutcomeCancelled, "panic": OutcomePanic,
	}[word]
	if !ok {
		t.Fatal(text)
	}
	return Outcome{Kind: kind}
}
