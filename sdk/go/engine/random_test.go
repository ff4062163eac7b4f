// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/policyd/policyd/sdk/go/engine"
)

// seeded returns a source that gives the same draws in each run.
func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

var scopes = []engine.Scope{"global", "shop", "shop/payments", "shop/payments/charge", "shop/payments/refund", "shop/pay", "media"}

// randomValue draws a value that a document may hold or, with wild, one that it may not.
func randomValue(r *rand.Rand, f engine.Field, wild bool) engine.Value {
	spec := f.Spec()
	if wild && r.IntN(4) == 0 {
		return []engine.Value{
			{},
			engine.Int(math.MinInt64), engine.Int(math.MaxInt64), engine.Duration(-time.Hour),
			engine.Micro(math.MaxInt64), engine.Enum("no such word"), engine.Text("\x00\xff"), engine.Set("", "5xx", "-1", "99999999999999999999"),
		}[r.IntN(8)]
	}
	v := engine.Value{Kind: spec.Kind}
	switch spec.Kind {
	case engine.KindBool:
		v.Int = r.Int64N(2)
	case engine.KindInt, engine.KindDecimal, engine.KindDuration:
		v.Int = spec.Min + r.Int64N(spec.Max-spec.Min+1)
	case engine.KindEnum:
		v.Text = spec.Words[r.IntN(len(spec.Words))]
	case engine.KindText:
		v.Text = "p95"
	case engine.KindSet:
		words := spec.Words
		if words == nil {
			words = strings.Fields("408 429 500 503 5xx")
		}
		items := []string{words[r.IntN(len(words))]}
		for _, w := range words {
			if r.IntN(2) == 0 {
				items = append(items, w)
			}
		}
		v = engine.Set(items...)
	}
	return v
}

func randomDocuments(r *rand.Rand, wild bool) []engine.Document {
	var documents []engine.Document
	for i, scope := range scopes {
		if r.IntN(3) == 0 {
			continue
		}
		s := engine.Settings{}
		for _, f := range engine.Fields() {
			if r.IntN(8) == 0 {
				s[f] = randomValue(r, f, wild)
			}
		}
		documents = append(documents, engine.Document{
			Scope: scope, Revision: int64(i + 1), Settings: s, Criticality: engine.Criticality(r.IntN(4)),
		})
	}
	return documents
}

func shuffled[T any](r *rand.Rand, in []T) []T {
	out := append([]T(nil), in...)
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}
