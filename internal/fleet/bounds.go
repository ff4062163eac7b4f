// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of what an instance may say, itself or through another policyd. Names that mean
// something are refused beyond them, text for people is cut.
const (
	MaxName       = 128
	MaxTargets    = 64
	MaxText       = 64
	MaxRejections = 100
	MaxReason     = 300
	MaxPath       = 200
	MaxReported   = 200 // endpoints
	MaxCodes      = 16
	MaxPeriod     = time.Hour
)

// Printable reports whether a name can be shown.
func Printable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// ValidName reports whether an instance, or a relay, may have a name.
func ValidName(name string) bool { return name != "" && len(name) <= MaxName && Printable(name) }

// Clip cuts s to at most n bytes of valid UTF-8.
func Clip(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "")
}

// FoldCodes keeps the first counts and sums the rest.
func FoldCodes(all map[string]int64, limit int) map[string]int64 {
	if len(all) == 0 {
		return nil
	}
	kept := make(map[string]int64, min(len(all), limit))
	for code, n := range all {
		code = Clip(code, MaxText)
		if _, known := kept[code]; !known && len(kept) >= limit {
			code = Other
		}
		kept[code] += max(n, 0)
	}
	return kept
}

// Clip cuts what another policyd says of an instance to what the instance itself may say.
func (in *Instance) Clip() {
	in.Namespace, in.Service = Clip(in.Namespace, MaxText), Clip(in.Service, MaxText)
	in.SDKLanguage, in.SDKVersion, in.Source = Clip(in.SDKLanguage, MaxText), Clip(in.SDKVersion, MaxText), Clip(in.Source, MaxText)
	in.Targets = in.Targets[:min(len(in.Targets), MaxTargets)]
	in.Rejected = in.Rejected[:min(len(in.Rejected), MaxRejections)]
	for i := range in.Rejected {
		r := &in.Rejected[i]
		r.Scope, r.Field, r.Reason = Clip(r.Scope, MaxPath), Clip(r.Field, MaxPath), Clip(r.Reason, MaxReason)
	}
	if in.Report != nil {
		in.Report.clip()
	}
}

func (r *Report) clip() {
	r.Period = min(max(r.Period, 0), MaxPeriod)
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		e.Endpoint, e.Breaker = Clip(e.Endpoint, MaxPath), Clip(e.Breaker, MaxText)
		e.Suppressed = FoldCodes(e.Suppressed, maxFoldedCodes)
		for _, n := range []*int64{&e.Calls, &e.Attempts, &e.Failed, &e.Rescued, &e.Rejected, &e.BudgetLeft} {
			*n = max(*n, 0)
		}
	}
	r.Fold(MaxReported)
}
